"""Depthwise 3x3 convolutions of many members, channels last.

Every output reads its nine neighbours through the cache; 2 bytes a number in, 2 out. The gradient
of the weights is summed by parts of the pixels, and the parts in order.

Shape letters: R rows, B batch, C channels, T taps, H W.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.ops.kernels.gradients import Convolution, ConvolutionKernels
from esper.kasmina.ops.kernels.grids import if_live, is_padding
from esper.kasmina.ops.kernels.layout import (
    Placement,
    dense_inside,
    dense_pixels,
    empty_activation,
    launched,
    next_power,
    placed,
    row_launches,
    row_stride,
)
from esper.kasmina.ops.kernels.sums import add_parts

NUMBERS: Final = 2048
"""Outputs per program."""
TILES: Final = 16
"""Minimum tiles per part of a weight gradient."""
MAX_PARTS: Final = 64


@triton.jit
def _neighbours(
    x, start, offset, c, tap, pixels,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Load the values `[pixels, channels]` under one tap; 0 outside the image.

    Pixels are `start + offset` of their row; `x` points at pixel `start`.
    """
    m = start + offset
    down, right = tap // SIDE - SIDE // 2, tap % SIDE - SIDE // 2
    row, column = (m // W) % H + down, m % W + right
    inside = (row >= 0) & (row < H) & (column >= 0) & (column < W) & (m < pixels)
    address = (offset + down * W + right)[:, None] * C + c[None, :]
    mask = inside[:, None] & (c < C)[None, :]
    return tl.load(x + address, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _convolve(
    x, weight, y, rows, live, first_row, x_row, weight_row, pixels, SKIPS: tl.constexpr,
    ADDS: tl.constexpr, C: tl.constexpr, CHANNELS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    SIDE: tl.constexpr, FLIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = x convolved; ADDS: added to rows[g] of y"""
    at = (first_row + tl.program_id(1)).to(tl.int64)
    if is_padding(live, at, SKIPS):
        return
    goal = at
    if ADDS:
        goal = tl.load(rows + at).to(tl.int64)
    start = tl.program_id(0) * BLOCK
    offset = tl.arange(0, BLOCK)
    x += at * x_row + start.to(tl.int64) * C
    c = tl.arange(0, CHANNELS)
    TAPS: tl.constexpr = SIDE * SIDE
    total = tl.zeros((BLOCK, CHANNELS), dtype=tl.float32)
    read = if_live(live, at, pixels, SKIPS)
    for tap in tl.static_range(TAPS):
        place = tap
        if FLIP:
            place = TAPS - 1 - tap
        factor = tl.load(weight + at * weight_row + c * TAPS + place, mask=c < C, other=0.0)
        # weights are rounded as autocast would
        factor = factor.to(y.dtype.element_ty).to(tl.float32)
        seen = _neighbours(x, start, offset, c, tap, read, C, H, W, SIDE)
        total += seen * factor[None, :]
    mask = (start + offset < pixels)[:, None] & (c < C)[None, :]
    target = y + (goal * pixels + start) * C + (offset[:, None] * C + c[None, :])
    out = total.to(y.dtype.element_ty)
    if ADDS:
        before = tl.load(target, mask=mask, other=0.0).to(tl.float32)
        out = (before + out.to(tl.float32)).to(y.dtype.element_ty)
    tl.store(target, out, mask=mask)


@triton.jit
def _weight_gradient(
    x, dy, partial, live, first_row, x_row, dy_row, pixels, tiles, SKIPS: tl.constexpr,
    C: tl.constexpr, CHANNELS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    SIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tap, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    at = (first_row + tl.program_id(2)).to(tl.int64)
    start = part * tiles * BLOCK
    x += at * x_row + start.to(tl.int64) * C
    dy += at * dy_row + start.to(tl.int64) * C
    c = tl.arange(0, CHANNELS)
    total = tl.zeros((BLOCK, CHANNELS), dtype=tl.float32)
    for tile in range(if_live(live, at, tiles, SKIPS)):
        offset = tile * BLOCK + tl.arange(0, BLOCK)
        seen = _neighbours(x, start, offset, c, tap, pixels, C, H, W, SIDE)
        mask = (start + offset < pixels)[:, None] & (c < C)[None, :]
        back = tl.load(dy + offset[:, None] * C + c[None, :], mask=mask, other=0.0)
        total += seen * back.to(tl.float32)
    TAPS: tl.constexpr = SIDE * SIDE
    target = partial + ((at * parts + part) * C + c) * TAPS + tap
    tl.store(target, tl.sum(total, axis=0), mask=c < C)


def _sizes(x: Tensor, side: int) -> dict[str, int]:
    channels = x.shape[2]
    up = next_power(channels)
    sizes = {"C": channels, "CHANNELS": up, "H": x.shape[3], "W": x.shape[4], "SIDE": side}
    return sizes | {"BLOCK": max(16, NUMBERS // up)}


def _run(x: Tensor, weight: Tensor, dtype: torch.dtype, backward: bool) -> Tensor:
    """Convolve `x`, or with flipped weights a gradient."""
    x = dense_pixels(x, dtype)
    return run_into(empty_activation((len(weight), *x.shape[1:]), x), x, weight, backward)


@launched
def run_into(
    y: Tensor, x: Tensor, weight: Tensor, backward: bool, place: Placement | None = None
) -> Tensor:
    """Convolve `x`, whose pixels are dense, into `y`, or with flipped weights a gradient.

    `place` of a step that does not `add`: backward the result is added to its rows if it `takes`.
    """
    weight = dense_inside(weight)
    rows, (_, batch, _, height, width) = len(weight), x.shape
    sizes, pixels = _sizes(x, weight.shape[-1]), batch * height * width
    index, _, live, skips = placed(rows, weight, place)
    adds = backward and place is not None and place.takes
    for first, count in row_launches(rows):
        _convolve[(triton.cdiv(pixels, sizes["BLOCK"]), count)](
            x, weight, y, index, live, first, row_stride(x), weight.stride(0), pixels, SKIPS=skips,
            ADDS=adds, **sizes, FLIP=backward, num_warps=4,
        )  # fmt: skip
    return y


@launched
def gradient_of_weights(x: Tensor, dy: Tensor, side: int, place: Placement | None = None) -> Tensor:
    """Return `[R, C, 1, side, side]` in float32; `place` of a step that does not `add`."""
    x = dense_pixels(x, dy.dtype)
    rows, batch, channels, height, width = dy.shape
    sizes, pixels = _sizes(x, side), batch * height * width
    most = triton.cdiv(pixels, sizes["BLOCK"])
    parts = max(1, min(MAX_PARTS, most // TILES))
    partial = torch.empty(
        rows, parts, channels, 1, side, side, dtype=torch.float32, device=x.device
    )
    _, _, live, skips = placed(rows, partial, place)
    for first, count in row_launches(rows):
        _weight_gradient[(side * side, parts, count)](
            x, dy, partial, live, first, row_stride(x), dy.stride(0), pixels,
            triton.cdiv(most, parts), SKIPS=skips, **sizes, num_warps=4,
        )  # fmt: skip
    return add_parts(partial)


KERNELS: Final = ConvolutionKernels(_run, gradient_of_weights)


def convolve_depthwise(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Depthwise convolution of `x` `[R or 1, B, C, H, W]` with weights `[R, C, 1, side, side]`.

    Returns `[R, B, C, H, W]`; under `vmap` all are without the row axis.
    """
    out: Tensor = Convolution.apply(x, weight, dtype, KERNELS)
    return out
