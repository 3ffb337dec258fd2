"""Squeeze and excite of many members: the mean of each channel, and a factor for each channel.

Torch would convert, broadcast and reduce in a pass over memory each, and leave the result in a
layout that our kernels do not read.

Shape letters: R rows, B batch, C channels, H W.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.kasmina.ops.kernel_scope import kernel_scope
from esper.kasmina.ops.kernels.grids import if_live, is_padding
from esper.kasmina.ops.kernels.layout import (
    dense_pixels,
    empty_activation,
    launched,
    live_rows,
    row_launches,
    skipping,
    stacked,
)
from esper.kasmina.ops.kernels.normalise import places_of, samples_of, sizes


@triton.jit
def _squeeze(
    x, means, live, first_row, x_row, batch, SKIPS: tl.constexpr,
    SAMPLES: tl.constexpr, PLACES: tl.constexpr, PLACES_UP: tl.constexpr, GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """means[sample, channel] = mean of x over the pixels"""
    first, left, row = samples_of(first_row, batch, SAMPLES)
    place, c, inside = places_of(left, SAMPLES, PLACES, PLACES_UP, GROUPS, WIDTH)
    s = tl.arange(0, SAMPLES)[:, None, None, None]
    goal = means + (row * batch + first) * WIDTH + (s * WIDTH + c)
    if is_padding(live, row, SKIPS):
        tl.store(goal, tl.zeros((SAMPLES, 1, GROUPS, WIDTH), tl.float32), mask=s < left)
        return
    read = inside & (s < if_live(live, row, left, SKIPS))
    value = tl.load(x + (row * x_row + first * (PLACES * WIDTH)) + place, mask=read, other=0.0)
    mean = tl.sum(value.to(tl.float32), axis=1)[:, None, :, :] / PLACES
    tl.store(goal, mean, mask=s < left)


@triton.jit
def _spread(
    dmeans, dx, live, first_row, dx_row, batch, ADD: tl.constexpr, SKIPS: tl.constexpr,
    SAMPLES: tl.constexpr, PLACES: tl.constexpr, PLACES_UP: tl.constexpr, GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """dx = (or +=, if ADD) dmeans[sample, channel] / pixels"""
    first, left, row = samples_of(first_row, batch, SAMPLES)
    if is_padding(live, row, SKIPS):
        return
    place, c, inside = places_of(left, SAMPLES, PLACES, PLACES_UP, GROUPS, WIDTH)
    s = tl.arange(0, SAMPLES)[:, None, None, None]
    own = (row * batch + first) * WIDTH + (s * WIDTH + c)
    back = tl.load(dmeans + own, mask=s < left, other=0.0) / PLACES
    out = back + tl.zeros((SAMPLES, PLACES_UP, GROUPS, WIDTH), tl.float32)
    target = dx + (row * dx_row + first * (PLACES * WIDTH)) + place
    if ADD:
        out += tl.load(target, mask=inside, other=0.0).to(tl.float32)
    tl.store(target, out.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def _excite(
    x, factor, y, live, first_row, x_row, batch, SKIPS: tl.constexpr,
    SAMPLES: tl.constexpr, PLACES: tl.constexpr, PLACES_UP: tl.constexpr, GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """y = x * factor[sample, channel]"""
    first, left, row = samples_of(first_row, batch, SAMPLES)
    if is_padding(live, row, SKIPS):
        return
    place, c, inside = places_of(left, SAMPLES, PLACES, PLACES_UP, GROUPS, WIDTH)
    s = tl.arange(0, SAMPLES)[:, None, None, None]
    read, sample = inside & (s < if_live(live, row, left, SKIPS)), row * batch + first
    value = tl.load(x + (row * x_row + first * (PLACES * WIDTH)) + place, mask=read, other=0.0)
    times = tl.load(factor + sample * WIDTH + (s * WIDTH + c), mask=s < left, other=0.0)
    out = (value.to(tl.float32) * times).to(y.dtype.element_ty)
    tl.store(y + sample * (PLACES * WIDTH) + place, out, mask=inside)


@triton.jit
def _excite_back(
    x, dy, factor, dx, dfactor, live, first_row, x_row, dy_row, batch, SKIPS: tl.constexpr,
    SAMPLES: tl.constexpr, PLACES: tl.constexpr, PLACES_UP: tl.constexpr, GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """dx = dy * factor; dfactor = sum of dy * x over the pixels"""
    first, left, row = samples_of(first_row, batch, SAMPLES)
    place, c, inside = places_of(left, SAMPLES, PLACES, PLACES_UP, GROUPS, WIDTH)
    s = tl.arange(0, SAMPLES)[:, None, None, None]
    sample = row * batch + first
    own = sample * WIDTH + (s * WIDTH + c)
    if is_padding(live, row, SKIPS):
        tl.store(dfactor + own, tl.zeros((SAMPLES, 1, GROUPS, WIDTH), tl.float32), mask=s < left)
        return
    read = inside & (s < if_live(live, row, left, SKIPS))
    value = tl.load(x + (row * x_row + first * (PLACES * WIDTH)) + place, mask=read, other=0.0)
    back = tl.load(dy + (row * dy_row + first * (PLACES * WIDTH)) + place, mask=read, other=0.0)
    value, back = value.to(tl.float32), back.to(tl.float32)
    times = tl.load(factor + own, mask=s < left, other=0.0)
    out = (back * times).to(dx.dtype.element_ty)
    tl.store(dx + sample * (PLACES * WIDTH) + place, out, mask=inside)
    tl.store(dfactor + own, tl.sum(back * value, axis=1)[:, None, :, :], mask=s < left)


@launched
def _run_squeeze(x: Tensor) -> Tensor:
    x = dense_pixels(x, x.dtype)
    rows, batch, channels = x.shape[:3]
    means = torch.empty(rows, batch, channels, dtype=torch.float32, device=x.device)
    (constants, programs, warps), (live, skips) = sizes(x, 1), skipping(rows, x)
    for first, count in row_launches(rows):
        _squeeze[(programs, count)](
            x, means, live, first, x.stride(0), batch, SKIPS=skips, **constants, num_warps=warps
        )
    return means


@launched
def _run_spread(dmeans: Tensor, dx: Tensor, add: bool) -> Tensor:
    """Write to `dx`, which is channels last, or add to it."""
    dmeans, (constants, programs, warps) = dmeans.contiguous(), sizes(dx, 1)
    live, skips = skipping(len(dx), dmeans)
    for first, count in row_launches(len(dx)):
        _spread[(programs, count)](
            dmeans, dx, live, first, dx.stride(0), dx.shape[1],
            ADD=add, SKIPS=skips, **constants, num_warps=warps,
        )  # fmt: skip
    return dx


@launched
def _run_excite(x: Tensor, factor: Tensor) -> Tensor:
    x, factor = dense_pixels(x, x.dtype), factor.float().contiguous()
    rows, batch = x.shape[:2]
    y = empty_activation(x.shape, x)
    (constants, programs, warps), (live, skips) = sizes(x, 1), skipping(rows, x)
    for first, count in row_launches(rows):
        _excite[(programs, count)](
            x, factor, y, live, first, x.stride(0), batch,
            SKIPS=skips, **constants, num_warps=warps,
        )  # fmt: skip
    return y


@launched
def _run_excite_back(x: Tensor, dy: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    x, dy, given = dense_pixels(x, x.dtype), dense_pixels(dy, x.dtype), factor.float().contiguous()
    rows, batch = x.shape[:2]
    dx, dfactor = empty_activation(x.shape, x), torch.empty_like(given)
    (constants, programs, warps), (live, skips) = sizes(x, 1), skipping(rows, x)
    for first, count in row_launches(rows):
        _excite_back[(programs, count)](
            x, dy, given, dx, dfactor, live, first, x.stride(0), dy.stride(0), batch,
            SKIPS=skips, **constants, num_warps=warps,
        )  # fmt: skip
    return dx, dfactor.to(factor.dtype)


class Squeeze(torch.autograd.Function):
    """`x` `[R, B, C, H, W]` -> its means `[R, B, C]` in float32, and `x` itself for `_Excite`; or
    one row of it all. Backward adds to the gradient of the second output in place."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        means = _run_squeeze(x[None])[0] if x.ndim == 4 else _run_squeeze(x)
        return means, x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        (x,) = inputs
        ctx.shape, ctx.dtype = x.shape, x.dtype
        ctx.live = live_rows(1 if x.ndim == 4 else len(x))
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dmeans: Tensor | None, dx: Tensor | None) -> Tensor | None:
        if dmeans is None:
            return dx
        one_row = len(ctx.shape) == 4
        dmeans = dmeans[None] if one_row else dmeans
        shape = (1, *ctx.shape) if one_row else ctx.shape
        if dx is None:
            total = empty_activation(shape, dmeans, ctx.dtype)
        else:
            total = dense_pixels(dx[None] if one_row else dx, ctx.dtype)
        with kernel_scope(live_R=ctx.live):
            _run_spread(dmeans, total, add=dx is not None)
        return total[0] if one_row else total

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None], x: Tensor
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return Squeeze.apply(stacked(x, in_dims[0], info.batch_size)), (0, 0)


class _Excite(torch.autograd.Function):
    """`x` `[R, B, C, H, W]`, factors `[R, B, C]` -> their product; or one row of it all."""

    @staticmethod
    def forward(x: Tensor, factor: Tensor) -> Tensor:
        return _run_excite(x[None], factor[None])[0] if x.ndim == 4 else _run_excite(x, factor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.live = live_rows(1 if inputs[0].ndim == 4 else len(inputs[0]))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, factor = ctx.saved_tensors
        one_row = x.ndim == 4
        x, factor, dy = (v[None] if one_row else v for v in (x, factor, dy))
        with kernel_scope(live_R=ctx.live):
            dx, dfactor = _run_excite_back(x, dy, factor)
        return (dx[0], dfactor[0]) if one_row else (dx, dfactor)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, int | None], x: Tensor, factor: Tensor
    ) -> tuple[Tensor, int]:
        rows = info.batch_size
        return _Excite.apply(stacked(x, in_dims[0], rows), stacked(factor, in_dims[1], rows)), 0


def squeeze(x: Tensor) -> tuple[Tensor, Tensor]:
    """Typed `Squeeze.apply`; only `excite` may use the second output, once."""
    out: tuple[Tensor, Tensor] = Squeeze.apply(x)
    return out


def excite(x: Tensor, factor: Tensor) -> Tensor:
    """Typed `_Excite.apply`."""
    out: Tensor = _Excite.apply(x, factor)
    return out
