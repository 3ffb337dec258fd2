"""Blend seeds into rows of an activation in one pass, each row with its own operator.

The operators are those of `layers.blending`. Forward reads a row and its delta and writes the row;
backward reads the row's gradient, the delta and a copy of the row as it was, writes the gradient of
the delta, and adds to the row's gradient what reaches the activation through the operator. Torch
would compute all operators for all rows and select, in a pass over memory for each operation.

An entry with alpha 0 is unused: it touches no row, and its delta gets a gradient of 0.

Shape letters: R rows, G rows of one group, N numbers of a row, C channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.device.branches import Branches
from esper.kasmina.ops.kernels.grids import block_of, is_padding, left_of
from esper.kasmina.ops.kernels.layout import IN_PLACE, launched, row_launches
from esper.kasmina.ops.kernels.rows import LANE, same_layout
from esper.kasmina.ops.kernels.sums import add_parts
from esper.leyline.actions import BlendStyle

BLOCK: Final = 2048
"""Elements per program forward, and of a block backward."""
BLOCKS: Final = 8
"""Blocks per program backward: fewer parts of the gates' sums."""
MAX_CHANNELS: Final = 256
"""Maximum channels of a gate."""

_MULTIPLY: tl.constexpr = tl.constexpr(int(BlendStyle.MULTIPLY))
_GATE: tl.constexpr = tl.constexpr(int(BlendStyle.GATE))


@triton.jit
def _tanh(v):
    return 2.0 * tl.sigmoid(2.0 * v) - 1.0


@triton.jit
def _blend(
    h, index, alpha, style, delta, weight, bias, gate_row, first, size,
    GATED: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """h[index[g]] += alpha[g] * update(h[index[g]], delta[g])"""
    at = (first + tl.program_id(1)).to(tl.int64)
    factor = tl.load(alpha + at)
    if factor == 0:
        return
    row, kind = tl.load(index + at).to(tl.int64), tl.load(style + at).to(tl.int32)
    start, offset, inside = block_of(size, BLOCK)
    update = tl.load(delta + (at * size + start) + offset, mask=inside, other=0.0).to(tl.float32)
    place = h + (row * size + start) + offset
    value = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    if kind == _MULTIPLY:
        update = value * _tanh(update)
    if GATED:  # noqa: SIM102 - a constant, apart from what is known on the device
        if kind == _GATE:
            channel = offset % C  # a program starts at a multiple of C
            w = tl.load(weight + at * gate_row + channel)
            b = tl.load(bias + at * gate_row + channel)
            update = update * tl.sigmoid(w * value + b)
    tl.store(place, (value + factor * update).to(h.dtype.element_ty), mask=inside)


@triton.jit
def _blend_back(
    grad, index, alpha, style, delta, kept, weight, bias, gate_row, ddelta, partial, alive, first,
    size, parts, SKIPS: tl.constexpr, GATED: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    """Gradient of the delta, of the gate (a part of its sums), and in place that of the row."""
    at = (first + tl.program_id(1)).to(tl.int64)
    sums = partial + (at * parts + tl.program_id(0)) * (2 * C) + tl.arange(0, C)
    if is_padding(alive, at, SKIPS):
        if GATED:
            tl.store(sums, tl.zeros((C,), tl.float32))
            tl.store(sums + C, tl.zeros((C,), tl.float32))
        return
    row, factor = tl.load(index + at).to(tl.int64), tl.load(alpha + at)
    kind = tl.load(style + at).to(tl.int32)
    offset = tl.arange(0, BLOCK)
    read_size = tl.where(factor != 0, size, 0)
    dw = tl.zeros((BLOCK,), tl.float32)
    db = tl.zeros((BLOCK,), tl.float32)
    w, b = dw, dw
    if GATED:
        w = tl.load(weight + at * gate_row + offset % C)  # a block starts at a multiple of C
        b = tl.load(bias + at * gate_row + offset % C)
    for block in range(BLOCKS):
        start = (tl.program_id(0).to(tl.int64) * BLOCKS + block) * BLOCK
        inside = offset < left_of(size, start, BLOCK)
        live = offset < left_of(read_size, start, BLOCK)
        place = grad + (row * size + start) + offset
        mine = (at * size + start) + offset
        arrived = tl.load(place, mask=live, other=0.0).to(tl.float32)
        back = arrived * factor
        if kind == _MULTIPLY:
            strength = _tanh(tl.load(delta + mine, mask=live, other=0.0).to(tl.float32))
            value = tl.load(kept + mine, mask=live, other=0.0).to(tl.float32)
            total = arrived + back * strength
            tl.store(place, total.to(grad.dtype.element_ty), mask=live)
            back = back * value * (1.0 - strength * strength)
        if GATED:  # noqa: SIM102 - a constant, apart from what is known on the device
            if kind == _GATE:
                value = tl.load(kept + mine, mask=live, other=0.0).to(tl.float32)
                gate = tl.sigmoid(w * value + b)
                seed = tl.load(delta + mine, mask=live, other=0.0).to(tl.float32)
                slope = back * seed * gate * (1.0 - gate)
                dw += slope * value
                db += slope
                tl.store(place, (arrived + slope * w).to(grad.dtype.element_ty), mask=live)
                back = back * gate
        tl.store(ddelta + mine, back.to(ddelta.dtype.element_ty), mask=inside)
    if GATED:
        tl.store(sums, tl.sum(tl.reshape(dw, (BLOCK // C, C)), axis=0))
        tl.store(sums + C, tl.sum(tl.reshape(db, (BLOCK // C, C)), axis=0))


def gates_fit(h: Tensor) -> bool:
    """Whether gates of `h` `[R, B, C, H, W]` are a kernel's: channels last, a power of two."""
    channels = h.shape[2] if h.ndim == 5 else 0
    power = channels > 0 and channels & (channels - 1) == 0
    return power and channels <= MAX_CHANNELS and h.stride(2) == 1


class BlendRows(NamedTuple):
    """Seeds of one kind that are blended into different rows of an activation."""

    kept: Tensor
    """`[G, ...]` copies of the rows. No input of autograd: what reaches them is added to the
    gradient of the rows."""
    delta: Tensor
    """`[G, ...]`"""
    rows: Tensor
    """`[G]` rows of the activation."""
    alpha: Tensor
    style: Tensor
    gates: tuple[Tensor, Tensor] | None
    """Weight and bias `[G, C]` if an entry may have style GATE (`gates_fit` must hold)."""
    live: Tensor | None = None
    """`[G]`, below 0 where nobody reads the gradient of the delta, as in `KernelScope.live_R`."""
    in_place: bool = False
    """Nobody reads the gradient of the delta of unused entries."""


PARTS: Final = 7
"""Tensors of a group, with weight and bias of the gates."""


class Blend(torch.autograd.Function):
    """(h, owned, own gradient, which rows of each group are live; for each group kept, delta,
    index, alpha, style, weight and bias of gates or None) -> h with the deltas blended in."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        owned: bool,
        own_gradient: bool,
        lives: Sequence[Tensor | None],
        *given: Tensor | None,
    ) -> Tensor:
        out = h.view_as(h) if owned else h.clone()
        layout = h.stride(), h.dtype
        groups = [_laid_out(group, layout) for group in _groups(given, lives)]
        with Branches(h.device, LANE) as branches:
            for group in groups:
                branches.run(partial(launch_blend, out, group))
        ctx.layout, ctx.own_gradient, ctx.lives = layout, own_gradient, lives
        ctx.save_for_backward(*_tensors(groups))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        groups = _groups(ctx.saved_tensors, ctx.lives)
        total = same_layout(grad, *ctx.layout)
        if total is grad and not ctx.own_gradient:
            total = grad.clone()
        ddeltas = [torch.empty_like(group.delta) for group in groups]
        with Branches(grad.device, LANE) as branches:
            found = [
                branches.run(partial(launch_blend_back, total, group, ddelta))
                for group, ddelta in zip(groups, ddeltas, strict=True)
            ]
        out: list[Tensor | None] = [total, None, None, None]
        for ddelta, gates in zip(ddeltas, found, strict=True):
            out += [None, ddelta, None, None, None, *gates]
        return tuple(out)


def _groups(given: Sequence[Any], lives: Sequence[Tensor | None]) -> list[BlendRows]:
    """Put together what `_tensors` took apart."""
    out = []
    for number, live in enumerate(lives):
        kept, delta, rows, alpha, style, *gates = given[PARTS * number : PARTS * (number + 1)]
        out.append(BlendRows(kept, delta, rows, alpha, style, _both(*gates), live))
    return out


def _both(weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor] | None:
    return None if weight is None or bias is None else (weight, bias)


def _tensors(groups: Sequence[BlendRows]) -> Iterator[Tensor | None]:
    """Yield the tensors of groups, as inputs of autograd."""
    for group in groups:
        yield from (*group[:5], *(group.gates or (None, None)))


def _laid_out(group: BlendRows, layout: tuple[tuple[int, ...], torch.dtype]) -> BlendRows:
    """Return a group as kernels read it."""
    gates = None if group.gates is None else flat_gates(*group.gates)
    return group._replace(delta=same_layout(group.delta, *layout), gates=gates)


def flat_gates(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight and bias `[G, C]` of gates as kernels read them: rows may lie apart, as those
    of parts of one tensor do, but equally for both."""
    weight, bias = weight.float().flatten(1), bias.float().flatten(1)
    if weight.stride() == bias.stride() and weight.stride(1) == 1:
        return weight, bias
    return weight.contiguous(), bias.contiguous()


@launched
def launch_blend(h: Tensor, group: BlendRows) -> None:
    """Blend the deltas of a group into their rows of `h` in place."""
    size = h[0].numel()
    weight, bias = group.gates or (group.alpha, group.alpha)
    for first, count in row_launches(len(group.rows)):
        _blend[(triton.cdiv(size, BLOCK), count)](
            h, group.rows, group.alpha, group.style, group.delta, weight, bias, weight.stride(0),
            first, size,
            GATED=group.gates is not None, C=weight[0].numel(), BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip


@launched
def launch_blend_back(
    grad: Tensor, group: BlendRows, ddelta: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Change `grad` in place, write `ddelta`; return the gradients of weight and bias of gates."""
    size, count, gated = grad[0].numel(), len(group.rows), group.gates is not None
    weight, bias = group.gates or (group.alpha, group.alpha)
    channels, parts = weight[0].numel(), triton.cdiv(size, BLOCK * BLOCKS)
    sums = group.alpha.new_empty((count, parts, 2, channels)) if gated else group.alpha
    alive = group.alpha if group.live is None or group.in_place else group.live
    skips = IN_PLACE if group.in_place else int(group.live is not None)
    for first, number in row_launches(count):
        _blend_back[(parts, number)](
            grad, group.rows, group.alpha, group.style, group.delta, group.kept, weight, bias,
            weight.stride(0), ddelta, sums, alive, first, size, parts, SKIPS=skips, GATED=gated,
            C=channels, BLOCK=BLOCK, BLOCKS=BLOCKS, num_warps=4,
        )  # fmt: skip
    if not gated:
        return None, None
    dweight, dbias = add_parts(sums).unbind(1)
    return dweight, dbias


def blend_rows(h: Tensor, groups: Sequence[BlendRows], owned: bool, own_gradient: bool) -> Tensor:
    """Return `h`, which is dense, with the deltas of each group blended into its rows.

    `owned`, `own_gradient`: nothing else refers to `h`, or to its gradient.
    """
    lives = [group.live for group in groups]
    out: Tensor = Blend.apply(h, owned, own_gradient, lives, *_tensors(groups))
    return out
