"""Convolutions of many members: stride 1, odd kernel, size-preserving, channels last.

An implicit matrix product with the member as a grid axis: a tile of pixels times the packed weights
of its member, the nine taps read through the cache. Forward moves 2 bytes for each input and each
output number, the gradient of the input as much, that of the weights reads both once. Sums are in
float32 and in a fixed order: the same numbers every time.

Shape letters: R rows, B batch, C channels in, O channels out, T taps, H W; K = taps x channels.
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
    empty_activation,
    laid_out,
    launched,
    next_power,
    placed,
    row_launches,
    row_stride,
)
from esper.kasmina.ops.kernels.sums import add_parts

PIXELS: Final = 256
"""Pixels of a forward tile."""
GRADIENT_PIXELS: Final = 128
"""Pixels of a tile of the weight gradient."""
TILES: Final = 16
"""Minimum tiles per part of a weight gradient. The summation order depends only on the number of
pixels, so that a row's sums do not depend on the number of rows."""
MAX_PARTS: Final = 64


@triton.jit
def _pack(
    weight, packed, first_row, weight_row, inputs, outputs, step_in, step_out,
    K: tl.constexpr, CHUNK: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    TAPS: tl.constexpr, FLIP: tl.constexpr,
):  # fmt: skip
    row = (first_row + tl.program_id(1)).to(tl.int64)
    k = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    n = tl.arange(0, OUTPUTS)
    tap, channel = k // INPUTS, k % INPUTS
    place = tap
    if FLIP:
        place = TAPS - 1 - tap
    inside = ((tap < TAPS) & (channel < inputs))[:, None] & (n < outputs)[None, :]
    address = (channel * step_in + place)[:, None] + (n * step_out)[None, :]
    value = tl.load(weight + row * weight_row + address, mask=inside, other=0.0)
    target = packed + row * K * OUTPUTS + k[:, None] * OUTPUTS + n[None, :]
    tl.store(target, value.to(packed.dtype.element_ty))


@triton.jit
def _tile(
    x, start, offset, k, pixels, channels,
    H: tl.constexpr, W: tl.constexpr, STEP: tl.constexpr, INPUTS: tl.constexpr,
    TAPS: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Load the values `[pixels, k]` under the taps and channels `k`; 0 outside the image.

    Pixels are `start + offset` of their row; `x` points at pixel `start`.
    """
    m = start + offset
    tap, channel = k // INPUTS, k % INPUTS
    # Half a side is taken off the pixel, not off the tap. A tap fits 16 bits: LLVM would take it
    # off `down` and `right` as a pair (add.s16x2), and in copies of that which ptxas 12.8 makes for
    # sm_90 the constant is lost (VIADD.16x2 R, R, 0x0): some pixels read the wrong neighbours.
    down, right = tap // SIDE, tap % SIDE
    row, column = (m // W) % H - SIDE // 2, m % W - SIDE // 2
    from_row = row[:, None] + down[None, :]
    from_column = column[:, None] + right[None, :]
    inside = (from_row >= 0) & (from_row < H) & (from_column >= 0) & (from_column < W)
    inside = inside & (m < pixels)[:, None] & (tap < TAPS)[None, :]
    if STEP < INPUTS:
        inside = inside & (channel < channels)[None, :]
    first = offset - SIDE // 2 * (W + 1)
    address = (first[:, None] + (down * W + right)[None, :]) * STEP + channel[None, :]
    return tl.load(x + address, mask=inside, other=0.0)


@triton.jit
def _convolve(
    x, packed, y, rows, alpha, live, first_row, x_row, pixels, inputs, SKIPS: tl.constexpr,
    SCALES: tl.constexpr, ADDS: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, STEP: tl.constexpr, INPUTS: tl.constexpr,
    OUT: tl.constexpr, OUTPUTS: tl.constexpr, K: tl.constexpr, CHUNK: tl.constexpr,
    TAPS: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = x convolved; SCALES: x is rows[g], to be multiplied by alpha; ADDS (to rows[g] of y,
    2: times alpha)

    A program reads all that it needs of its pixels before it changes them, so that x may be y if
    the kernel is 1x1.
    """
    row = (first_row + tl.program_id(1)).to(tl.int64)
    if is_padding(live, row, SKIPS):
        return
    source, target, factor = row, row, 1.0
    if SCALES or ADDS > 0:
        factor = tl.load(alpha + row)
    if SCALES:
        source = tl.load(rows + row).to(tl.int64)
    if ADDS > 0:
        target = tl.load(rows + row).to(tl.int64)
    start = tl.program_id(0) * BLOCK
    offset = tl.arange(0, BLOCK)
    n = tl.arange(0, OUTPUTS)
    x += source * x_row + start.to(tl.int64) * STEP
    packed += row * K * OUTPUTS
    total = tl.zeros((BLOCK, OUTPUTS), dtype=tl.float32)
    seen = if_live(live, row, pixels, SKIPS)
    for chunk in tl.static_range(0, K, CHUNK):
        k = chunk + tl.arange(0, CHUNK)
        tile = _tile(x, start, offset, k, seen, inputs, H, W, STEP, INPUTS, TAPS, SIDE)
        if SCALES:
            tile = (tile.to(tl.float32) * factor).to(x.dtype.element_ty)
        weight = tl.load(packed + k[:, None] * OUTPUTS + n[None, :])
        total = tl.dot(tile, weight, total)
    m = start + offset
    inside = (m < pixels)[:, None] & (n < OUT)[None, :]
    place = y + target * pixels * OUT + (m.to(tl.int64)[:, None] * OUT + n[None, :])
    out = total.to(y.dtype.element_ty)
    if ADDS > 0:
        more = out.to(tl.float32)
        if ADDS == 2:
            more = more * factor
        out = (tl.load(place, mask=inside, other=0.0).to(tl.float32) + more).to(y.dtype.element_ty)
    tl.store(place, out, mask=inside)


@triton.jit
def _weight_gradient(
    x, dy, partial, rows, alpha, live, first_row, x_row, dy_row, pixels, inputs, tiles,
    SKIPS: tl.constexpr, SCALES: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, STEP: tl.constexpr, INPUTS: tl.constexpr,
    OUT: tl.constexpr, OUTPUTS: tl.constexpr, CHUNK: tl.constexpr, TAPS: tl.constexpr,
    SIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A part of the gradient; SCALES: dy is rows[g], to be multiplied by alpha"""
    part, parts = tl.program_id(1), tl.num_programs(1)
    row = (first_row + tl.program_id(2)).to(tl.int64)
    k = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    n = tl.arange(0, OUTPUTS)
    start = part * tiles * BLOCK
    x += row * x_row + start.to(tl.int64) * STEP
    source, factor = row, 1.0
    if SCALES:
        source, factor = tl.load(rows + row).to(tl.int64), tl.load(alpha + row)
    dy += source * dy_row + start.to(tl.int64) * OUT
    total = tl.zeros((OUTPUTS, CHUNK), dtype=tl.float32)
    for tile in range(if_live(live, row, tiles, SKIPS)):
        offset = tile * BLOCK + tl.arange(0, BLOCK)
        seen = _tile(x, start, offset, k, pixels, inputs, H, W, STEP, INPUTS, TAPS, SIDE)
        inside = (start + offset < pixels)[:, None] & (n < OUT)[None, :]
        back = tl.load(dy + offset[:, None] * OUT + n[None, :], mask=inside, other=0.0)
        if SCALES:
            back = (back.to(tl.float32) * factor).to(dy.dtype.element_ty)
        total = tl.dot(tl.trans(back), seen, total)
    tap, channel = k // INPUTS, k % INPUTS
    inside = (n < OUT)[:, None] & ((tap < TAPS) & (channel < inputs))[None, :]
    partial += (row * parts + part) * OUT * inputs * TAPS
    address = n[:, None] * inputs * TAPS + (channel * TAPS + tap)[None, :]
    tl.store(partial + address, total, mask=inside)


@launched
def _packed(weight: Tensor, dtype: torch.dtype, backward: bool) -> tuple[Tensor, int, int]:
    """Return weights `[R, K, N]` in product order, the channels of K, and its chunk size."""
    weight = dense_inside(weight)
    rows, outputs, inputs, side, _ = weight.shape
    taps = side * side
    step_in, step_out = taps, inputs * taps
    if backward:
        inputs, outputs, step_in, step_out = outputs, inputs, step_out, step_in
    width, columns = next_power(inputs), max(16, next_power(outputs))
    chunk = min(64, max(16, width))
    length = -(-taps * width // chunk) * chunk
    packed = torch.empty(rows, length, columns, dtype=dtype, device=weight.device)
    for first, count in row_launches(rows):
        _pack[(length // chunk, count)](
            weight, packed, first, weight.stride(0), inputs, outputs, step_in, step_out,
            K=length, CHUNK=chunk, INPUTS=width, OUTPUTS=columns, TAPS=taps, FLIP=backward,
        )  # fmt: skip
    return packed, width, chunk


def _run(x: Tensor, weight: Tensor, dtype: torch.dtype, backward: bool) -> Tensor:
    """Convolve `x` `[R, B, C, H, W]`, or with flipped weights a gradient."""
    x, step = laid_out(x, dtype)
    outputs = weight.shape[2] if backward else weight.shape[1]
    y = empty_activation((len(weight), x.shape[1], outputs, *x.shape[3:]), x)
    return run_into(y, x, weight, backward, step=step)


@launched
def run_into(
    y: Tensor,
    x: Tensor,
    weight: Tensor,
    backward: bool,
    place: Placement | None = None,
    step: int | None = None,
) -> Tensor:
    """Convolve `x`, which is laid out, into `y`, or with flipped weights a gradient.

    `place` of a step: forward alpha times the result is added to its rows if it `adds`. Backward it
    reads the gradient there in that case, and adds the result to them if it `takes`. `step`: stored
    channels of a pixel of `x`, if not its own.
    """
    step = x.shape[2] if step is None else step
    _, batch, inputs, height, width = x.shape
    rows, side, outputs = weight.shape[0], weight.shape[-1], y.shape[2]
    packed, in_width, chunk = _packed(weight, x.dtype, backward)
    pixels, (index, alpha, live, skips) = batch * height * width, placed(rows, packed, place)
    scales, adds = False, 0
    if place is not None:
        scales = backward and place.adds
        adds = int(place.takes) if backward else 2 * place.adds
    for first, count in row_launches(rows):
        _convolve[(triton.cdiv(pixels, PIXELS), count)](
            x, packed, y, index, alpha, live, first, row_stride(x), pixels, inputs, SKIPS=skips,
            SCALES=scales, ADDS=adds,
            H=height, W=width, STEP=step, INPUTS=in_width, OUT=outputs, OUTPUTS=packed.shape[2],
            K=packed.shape[1], CHUNK=chunk, TAPS=side * side, SIDE=side, BLOCK=PIXELS, num_warps=4,
        )  # fmt: skip
    return y


@launched
def gradient_of_weights(x: Tensor, dy: Tensor, side: int, place: Placement | None = None) -> Tensor:
    """Return `[R, O, C, side, side]` in float32, from parts summed in order.

    `place` of a step: if it `adds`, `dy` are those rows.
    """
    x, step = laid_out(x, dy.dtype)
    _, batch, inputs, height, width = x.shape
    scales = place is not None and place.adds
    rows, outputs, taps = len(x) if scales else len(dy), dy.shape[2], side * side
    in_width, columns = next_power(inputs), max(16, next_power(outputs))
    whole = max(16, next_power(taps * in_width))
    chunk = whole if whole <= 128 else 64
    chunks, pixels = triton.cdiv(taps * in_width, chunk), batch * height * width
    most = triton.cdiv(pixels, GRADIENT_PIXELS)
    parts = max(1, min(MAX_PARTS, most // TILES))
    tiles = triton.cdiv(most, parts)
    partial = torch.empty(
        rows, parts, outputs, inputs, side, side, dtype=torch.float32, device=x.device
    )
    index, alpha, live, skips = placed(rows, partial, place)
    for first, count in row_launches(rows):
        _weight_gradient[(chunks, parts, count)](
            x, dy, partial, index, alpha, live, first, row_stride(x), dy.stride(0), pixels, inputs,
            tiles, SKIPS=skips, SCALES=scales,
            H=height, W=width, STEP=step, INPUTS=in_width, OUT=outputs, OUTPUTS=columns,
            CHUNK=chunk, TAPS=taps, SIDE=side, BLOCK=GRADIENT_PIXELS, num_warps=4, num_stages=2,
        )  # fmt: skip
    return add_parts(partial)


KERNELS: Final = ConvolutionKernels(_run, gradient_of_weights)


def convolve(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Convolve `x` `[R or 1, B, C, H, W]` with weights `[R, O, C, side, side]`.

    Returns `[R, B, O, H, W]`; under `vmap` all are without the row axis.
    """
    out: Tensor = Convolution.apply(x, weight, dtype, KERNELS)
    return out
