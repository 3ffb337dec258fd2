"""2x2 max pool with stride 2, channels last; a last odd row or column is pooled alone.

Forward reads 2 bytes a number and writes a quarter of them. Backward finds the winner again from
the input (the first of equals, as in torch; NaN wins) and writes every gradient once.

Shape letters: R rows, B batch, C channels, H W.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.kasmina.kernels.grids import block_of
from esper.kasmina.kernels.launches import row_launches
from esper.kasmina.kernels.layout import dense_pixels, empty_activation, launched, stacked

BLOCK: Final = 1024
"""Outputs per program."""


@triton.jit
def _outputs(
    outputs,
    C: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return start, offsets and mask of the program's outputs, their first sample (int64), and
    their indices relative to that sample."""
    start, offset, inside = block_of(outputs, BLOCK)
    sample = start // (C * WO * HO)
    return start, offset, inside, sample, (start - sample * (C * WO * HO)).to(tl.int32) + offset


@triton.jit
def _four(
    x, n, inside,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
):  # fmt: skip
    """Load the four values under output n, -inf beyond the edge, and the index of the first."""
    c, column, row, sample = n % C, (n // C) % WO, (n // (C * WO)) % HO, n // (C * WO * HO)
    first = ((sample * H + 2 * row) * W + 2 * column) * C + c
    wide = inside & (2 * column + 1 < W)
    tall = inside & (2 * row + 1 < H)
    low = float("-inf")
    a = tl.load(x + first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x + first + C, mask=wide, other=low).to(tl.float32)
    d = tl.load(x + first + W * C, mask=tall, other=low).to(tl.float32)
    e = tl.load(x + first + W * C + C, mask=wide & tall, other=low).to(tl.float32)
    return a, b, d, e, first, wide, tall


@triton.jit
def _winner(a, b, d, e):
    """Return value and index of the first maximum; NaN is larger than all, the last NaN wins."""
    best, who = a, tl.zeros_like(a).to(tl.int32)
    take = (b > best) | (b != b)
    best, who = tl.where(take, b, best), tl.where(take, 1, who)
    take = (d > best) | (d != d)
    best, who = tl.where(take, d, best), tl.where(take, 2, who)
    take = (e > best) | (e != e)
    best, who = tl.where(take, e, best), tl.where(take, 3, who)
    return best, who


@triton.jit
def _forward(
    x, y, first_row, x_row, outputs,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = (first_row + tl.program_id(1)).to(tl.int64)
    start, offset, inside, sample, n = _outputs(outputs, C, HO, WO, BLOCK)
    x += at * x_row + sample * (H * W * C)
    a, b, d, e, _first, _wide, _tall = _four(x, n, inside, C, H, W, HO, WO)
    best, _who = _winner(a, b, d, e)
    tl.store(y + (at * outputs + start) + offset, best.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    x, dy, dx, first_row, x_row, dy_row, outputs, size,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = (first_row + tl.program_id(1)).to(tl.int64)
    start, offset, inside, sample, n = _outputs(outputs, C, HO, WO, BLOCK)
    x += at * x_row + sample * (H * W * C)
    a, b, d, e, first, wide, tall = _four(x, n, inside, C, H, W, HO, WO)
    _best, who = _winner(a, b, d, e)
    back = tl.load(dy + (at * dy_row + start) + offset, mask=inside, other=0.0)
    none = tl.zeros_like(back)
    target = dx + (at * size + sample * (H * W * C)) + first
    tl.store(target, tl.where(who == 0, back, none), mask=inside)
    tl.store(target + C, tl.where(who == 1, back, none), mask=wide)
    tl.store(target + W * C, tl.where(who == 2, back, none), mask=tall)
    tl.store(target + W * C + C, tl.where(who == 3, back, none), mask=wide & tall)


def _sizes(x: Tensor) -> dict[str, int]:
    _, _, channels, height, width = x.shape
    out_height, out_width = -(-height // 2), -(-width // 2)
    return {"C": channels, "H": height, "W": width, "HO": out_height, "WO": out_width}


@launched
def _pooled(x: Tensor) -> Tensor:
    x = dense_pixels(x, x.dtype)
    sizes = _sizes(x)
    rows, batch, channels = x.shape[:3]
    y = empty_activation((rows, batch, channels, sizes["HO"], sizes["WO"]), x)
    outputs = y[0].numel()
    for first, count in row_launches(rows):
        _forward[(triton.cdiv(outputs, BLOCK), count)](
            x, y, first, x.stride(0), outputs, **sizes, BLOCK=BLOCK, num_warps=4
        )
    return y


class MaxPool(torch.autograd.Function):
    """`[R, B, C, H, W]` -> `[R, B, C, ceil(H / 2), ceil(W / 2)]`; or one row of it."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        if x.ndim == 4:
            return MaxPool.forward(x[None])[0]
        return _pooled(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        if x.ndim == 4:
            return _gradient(x[None], dy[None])[0]
        return _gradient(x, dy)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor) -> tuple[Tensor, int]:
        return MaxPool.apply(stacked(x, in_dims[0], info.batch_size)), 0


@launched
def _gradient(x: Tensor, dy: Tensor) -> Tensor:
    x, dy = dense_pixels(x, x.dtype), dense_pixels(dy, x.dtype)
    dx = empty_activation(x.shape, x)
    outputs = dy[0].numel()
    for first, count in row_launches(len(x)):
        _backward[(triton.cdiv(outputs, BLOCK), count)](
            x, dy, dx, first, x.stride(0), dy.stride(0), outputs, dx[0].numel(), **_sizes(x),
            BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
    return dx


def max_pool(x: Tensor) -> Tensor:
    """Typed `MaxPool.apply`."""
    out: Tensor = MaxPool.apply(x)
    return out
