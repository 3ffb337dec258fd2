"""Gather rows of activations for seeds, and add the seeds' results back.

A row is contiguous memory; nothing here depends on the layout inside. `gather` copies rows out,
`scatter_add` adds (alpha times) the results. Seeds of one slot are in different rows, so one copy
of the activation serves all of them. The backward pass mirrors this and skips rows without a seed.

Programs add without atomics, so at most one entry may write to a row. Unused entries of a padded
plan share a few padding rows; their alpha is 0, and such an entry writes nothing, neither forward
nor backward.

Rows are added in place if the caller owns the buffer, that is if nothing else refers to it: the
activation if `Join` has just made it, the gradient if the next module returns a new one
(`network.FusedRun`). Otherwise they are added to a copy.

Shape letters: R rows, G rows of one group, N numbers of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.device.branches import Branches
from esper.kasmina.ops.kernels.grids import block_of, if_live, is_padding, left_of
from esper.kasmina.ops.kernels.layout import IN_PLACE, launched, row_launches

BLOCK: Final = 4096
"""Elements per program."""
LANE: Final = 1
"""Lane of branches that move rows."""


@triton.jit
def _take(
    source, index, scale, target, first, size,
    SKIPS: tl.constexpr, SCALED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """target[g] = source[index[g]] (times scale[g]), or 0 where scale[g] is 0; nothing below 0 (and
    if SKIPS is IN_PLACE at 0)"""
    at = (first + tl.program_id(1)).to(tl.int64)
    if is_padding(scale, at, SKIPS):
        return
    start, offset, inside = block_of(size, BLOCK)
    row = tl.load(index + at).to(tl.int64)
    read = offset < left_of(if_live(scale, at, size, SKIPS), start, BLOCK)
    value = tl.load(source + (row * size + start) + offset, mask=read, other=0.0)
    if SCALED:
        value = value.to(tl.float32) * tl.load(scale + at)
    tl.store(target + (at * size + start) + offset, value.to(target.dtype.element_ty), mask=inside)


@triton.jit
def _add(target, index, scale, source, first, size, SCALED: tl.constexpr, BLOCK: tl.constexpr):
    """target[index[g]] += source[g] (times scale[g]); skipped unless scale[g] is above 0"""
    at = (first + tl.program_id(1)).to(tl.int64)
    row, factor = tl.load(index + at).to(tl.int64), tl.load(scale + at)
    start, offset, inside = block_of(tl.where(factor > 0, size, 0), BLOCK)
    value = tl.load(source + (at * size + start) + offset, mask=inside).to(tl.float32)
    if SCALED:
        value = value * factor
    place = target + (row * size + start) + offset
    total = tl.load(place, mask=inside).to(tl.float32) + value
    tl.store(place, total.to(target.dtype.element_ty), mask=inside)


def dense(h: Tensor) -> Tensor:
    """Return `h` with contiguous, consecutive rows; no copy if it already is."""
    order = sorted(range(1, h.ndim), key=lambda d: (h.stride(d), -d))
    expected = 1
    for d in order:
        if h.shape[d] > 1 and h.stride(d) != expected:
            return h.contiguous()
        expected *= h.shape[d]
    return h if h.shape[0] == 1 or h.stride(0) == expected else h.contiguous()


def _like_rows(h: Tensor, rows: int) -> Tensor:
    """Allocate `rows` rows with the inner layout of `h`."""
    size = h[0].numel()
    return torch.empty_strided(
        (rows, *h.shape[1:]), (size, *h.stride()[1:]), dtype=h.dtype, device=h.device
    )


def same_layout(grad: Tensor, stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a gradient with the inner row layout of its value."""
    if grad.dtype == dtype and grad.stride()[1:] == stride[1:] and dense(grad) is grad:
        return grad
    out = torch.empty_strided(
        grad.shape, (grad[0].numel(), *stride[1:]), dtype=dtype, device=grad.device
    )
    return out.copy_(grad)


def _take_rows(
    h: Tensor,
    index: Tensor,
    out: Tensor | None = None,
    scale: Tensor | None = None,
    live: Tensor | None = None,
) -> Tensor:
    """Return copies of rows, optionally scaled; of rows with scale or `live` 0: zeros; of rows with
    `live` below 0: whatever was there."""
    out = _like_rows(h, len(index)) if out is None else out
    skip = scale if live is None else live
    _launch_take(h, index, skip, out, int(skip is not None), scale is not None)
    return out


def take_used_rows(h: Tensor, index: Tensor, alpha: Tensor, out: Tensor) -> None:
    """Copy rows to `out`; nothing for unused entries, whose alpha is 0."""
    _launch_take(h, index, alpha, out, IN_PLACE, False)


@launched
def _launch_take(
    h: Tensor, index: Tensor, skip: Tensor | None, out: Tensor, skips: int, scaled: bool
) -> None:
    size = h[0].numel()
    for first, count in row_launches(len(index)):
        _take[(triton.cdiv(size, BLOCK), count)](
            h, index, skip, out, first, size,
            SKIPS=skips, SCALED=scaled, BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip


@launched
def _add_rows_(h: Tensor, index: Tensor, alpha: Tensor, values: Tensor, scaled: bool) -> None:
    """Add values (times alpha if `scaled`) to rows in place; entries with alpha 0 are skipped.

    A row may appear once in the index, or any number of times with alpha 0.
    """
    size = h[0].numel()
    for first, count in row_launches(len(index)):
        _add[(triton.cdiv(size, BLOCK), count)](
            h, index, alpha, values, first, size, SCALED=scaled, BLOCK=BLOCK, num_warps=4
        )


def _add_groups(
    h: Tensor, places: tuple[Sequence[Tensor], ...], values: Sequence[Tensor], scaled: bool
) -> None:
    """`_add_rows_` for groups that have different rows, and so may overlap."""
    with Branches(h.device, LANE) as branches:
        for index, alpha, own in zip(*places, values, strict=True):
            branches.run(partial(_add_rows_, h, index, alpha, own, scaled))


class Gather(torch.autograd.Function):
    """(h, own gradient, for each group: index, live) -> h itself, and the rows of each group."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, own_gradient: bool, *parts: Tensor) -> tuple[Tensor, ...]:
        h = dense(h)
        ctx.own_gradient = own_gradient
        ctx.places = parts[0::2], parts[1::2]
        ctx.layout = h.stride(), h.dtype
        taken = [_like_rows(h, len(index)) for index in parts[0::2]]
        with Branches(h.device, LANE) as branches:
            for index, live, out in zip(*ctx.places, taken, strict=True):
                branches.run(partial(_take_rows, h, index, out, live=live))
        return (h.view_as(h), *taken)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *grads: Tensor) -> tuple[Tensor | None, ...]:
        total = same_layout(grad, *ctx.layout)
        if total is grad and not ctx.own_gradient:
            total = grad.clone()
        _add_groups(total, ctx.places, [same_layout(g, *ctx.layout) for g in grads], scaled=False)
        return (total, None, *(None for _ in chain(*ctx.places)))


class _ScatterAdd(torch.autograd.Function):
    """(h, owned, for each group: index, alpha, delta) -> h with alpha * delta added to the rows."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, owned: bool, *parts: Tensor) -> Tensor:
        out = dense(h)
        if out is h:
            out = h.view_as(h) if owned else h.clone()
        ctx.layout = out.stride(), out.dtype
        ctx.places = parts[0::3], parts[1::3]
        deltas = [same_layout(delta, *ctx.layout) for delta in parts[2::3]]
        _add_groups(out, ctx.places, deltas, scaled=True)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = same_layout(grad, *ctx.layout)
        taken = [_like_rows(grad, len(index)) for index in ctx.places[0]]
        with Branches(grad.device, LANE) as branches:
            for index, alpha, out in zip(*ctx.places, taken, strict=True):
                branches.run(partial(_take_rows, grad, index, out, scale=alpha))
        return (grad, None, *(value for out in taken for value in (None, None, out)))


class Join(torch.autograd.Function):
    """(h, index, detach, whole) -> h with copies of rows appended, optionally detached.

    `whole`: the memory of `h` with as many rows behind it, which nothing else refers to; None: `h`
    is copied.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, index: Tensor, detach: bool, whole: Tensor | None) -> Tensor:
        h = dense(h)
        if whole is None:
            out = _like_rows(h, len(h) + len(index))
            out[: len(h)].copy_(h)
        else:
            out = whole.view_as(whole)
        _take_rows(h, index, out[len(h) :])
        ctx.layout = h.stride(), h.dtype
        ctx.rows, ctx.index, ctx.detach = len(h), index, detach
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        grad = same_layout(grad, *ctx.layout)
        own = grad[: ctx.rows]
        if not ctx.detach:
            # several rows may begin from the same one
            flat = own.clone()
            return flat.index_add_(0, ctx.index, grad[ctx.rows :]), None, None, None
        return own, None, None, None


def join(h: Tensor, source: Tensor, detach: bool, whole: Tensor | None = None) -> Tensor:
    """Typed `Join.apply`."""
    out: Tensor = Join.apply(h, source, detach, whole)
    return out


def gather(
    h: Tensor, index: Sequence[Tensor], alpha: Sequence[Tensor], own_gradient: bool = False
) -> tuple[Tensor, ...]:
    """Typed `Gather.apply`; `alpha` as for `scatter_add`.

    `own_gradient`: nothing else refers to the gradient of `h`, so rows are added to it in place.
    """
    parts = chain.from_iterable(zip(index, alpha, strict=True))
    out: tuple[Tensor, ...] = Gather.apply(h, own_gradient, *parts)
    return out


def scatter_add(
    h: Tensor,
    index: Sequence[Tensor],
    alpha: Sequence[Tensor],
    update: Sequence[Tensor],
    owned: bool = False,
) -> Tensor:
    """Return `h` with alpha times its update added to each row of each group.

    `owned`: nothing else refers to the memory of `h`, so it is changed in place.
    """
    parts = chain.from_iterable(zip(index, alpha, update, strict=True))
    out: Tensor = _ScatterAdd.apply(h, owned, *parts)
    return out
