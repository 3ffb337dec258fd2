"""2x2 max pool with stride 2, channels last; a last odd row or column is pooled alone.

Forward reads 2 bytes a number and writes a quarter of them, and where a backward pass may follow a
byte for each: which of the four won (the first of equals, as in torch; NaN wins). Backward reads
these instead of the input, and writes every gradient once.

Shape letters: R rows, B batch, C channels, H W.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.kasmina.ops.kernel_scope import kernel_scope
from esper.kasmina.ops.kernels.grids import block_of, if_live, is_padding
from esper.kasmina.ops.kernels.layout import (
    dense_pixels,
    empty_activation,
    launched,
    live_rows,
    next_power,
    row_launches,
    skipping,
    stacked,
)

BLOCK: Final = 1024
"""Outputs per program."""
NUMBERS_BACK: Final = 2048
"""The same backward."""


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
def _places(
    n, inside,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
):  # fmt: skip
    """Return the index of the first value under output n, and whether it has a right and a lower
    neighbour."""
    c, column, row, sample = n % C, (n // C) % WO, (n // (C * WO)) % HO, n // (C * WO * HO)
    first = ((sample * H + 2 * row) * W + 2 * column) * C + c
    return first, inside & (2 * column + 1 < W), inside & (2 * row + 1 < H)


@triton.jit
def _winner(x, first, inside, wide, tall, C: tl.constexpr, W: tl.constexpr):
    """Return value and index of the first maximum of the four; beyond the edge is -inf.

    NaN is larger than all, the last NaN wins.
    """
    low = float("-inf")
    a = tl.load(x + first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x + first + C, mask=wide, other=low).to(tl.float32)
    d = tl.load(x + first + W * C, mask=tall, other=low).to(tl.float32)
    e = tl.load(x + first + W * C + C, mask=wide & tall, other=low).to(tl.float32)
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
    x, y, winners, live, first_row, x_row, outputs, SKIPS: tl.constexpr,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    KEEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = (first_row + tl.program_id(1)).to(tl.int64)
    if is_padding(live, at, SKIPS):
        return
    start, offset, inside, sample, n = _outputs(outputs, C, HO, WO, BLOCK)
    x += at * x_row + sample * (H * W * C)
    read = inside & (offset < if_live(live, at, BLOCK, SKIPS))
    first, wide, tall = _places(n, read, C, H, W, HO, WO)
    best, who = _winner(x, first, read, wide, tall, C, W)
    tl.store(y + (at * outputs + start) + offset, best.to(y.dtype.element_ty), mask=inside)
    if KEEP:
        tl.store(winners + (at * outputs + start) + offset, who.to(tl.uint8), mask=read)


@triton.jit
def _backward(
    winners, dy, dx, live, first_row, dy_row, pixels, size, SKIPS: tl.constexpr,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Pixels by channels, so that a thread's accesses are whole pixels wherever they lie."""
    at = (first_row + tl.program_id(1)).to(tl.int64)
    if is_padding(live, at, SKIPS):
        return
    start, offset, there = block_of(pixels, BLOCK)
    sample = start // (WO * HO)
    p, c = (start - sample * (WO * HO)).to(tl.int32) + offset, tl.arange(0, CHANNELS)[None, :]
    column, row = p % WO, (p // WO) % HO
    first = (((p // (WO * HO)) * H + 2 * row) * W + 2 * column) * C
    inside = there[:, None] & (c < C)
    wide, tall = inside & (2 * column + 1 < W)[:, None], inside & (2 * row + 1 < H)[:, None]
    read = inside & (c < if_live(live, at, C, SKIPS))
    own = start * C + (offset[:, None] * C + c)
    who = tl.load(winners + at * pixels * C + own, mask=read, other=0)
    back = tl.load(dy + at * dy_row + own, mask=read, other=0.0)
    none = tl.zeros_like(back)
    target = dx + (at * size + sample * (H * W * C)) + (first[:, None] + c)
    tl.store(target, tl.where(who == 0, back, none), mask=inside)
    tl.store(target + C, tl.where(who == 1, back, none), mask=wide)
    tl.store(target + W * C, tl.where(who == 2, back, none), mask=tall)
    tl.store(target + W * C + C, tl.where(who == 3, back, none), mask=wide & tall)


def _sizes(height: int, width: int, channels: int) -> dict[str, int]:
    return {"C": channels, "H": height, "W": width, "HO": -(-height // 2), "WO": -(-width // 2)}


@launched
def _pooled(x: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """Return the pooled rows and the winners `[R, outputs]`, empty unless they are kept."""
    x = dense_pixels(x, x.dtype)
    rows, batch, channels, height, width = x.shape
    sizes = _sizes(height, width, channels)
    y = empty_activation((rows, batch, channels, sizes["HO"], sizes["WO"]), x)
    outputs = y[0].numel()
    winners = torch.empty(rows, outputs if keep else 0, dtype=torch.uint8, device=x.device)
    live, skips = skipping(rows, x)
    for first, count in row_launches(rows):
        _forward[(triton.cdiv(outputs, BLOCK), count)](
            x, y, winners, live, first, x.stride(0), outputs, SKIPS=skips, **sizes, KEEP=keep,
            BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
    return y, winners


class _MaxPool(torch.autograd.Function):
    """`[R, B, C, H, W]`, keep -> `[R, B, C, ceil(H / 2), ceil(W / 2)]` and the winners of each row,
    which backward needs; or one row of it all."""

    @staticmethod
    def forward(x: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
        if x.ndim == 4:
            y, winners = _pooled(x[None], keep)
            return y[0], winners[0]
        return _pooled(x, keep)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)  # of winners
        ctx.size = inputs[0].shape[-2:]
        ctx.live = live_rows(1 if inputs[0].ndim == 4 else len(inputs[0]))
        ctx.save_for_backward(output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, _: Tensor | None) -> tuple[Tensor, None]:
        (winners,) = ctx.saved_tensors
        with kernel_scope(live_R=ctx.live):
            if dy.ndim == 4:
                return _gradient(winners[None], dy[None], *ctx.size)[0], None
            return _gradient(winners, dy, *ctx.size), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, keep: bool
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return _MaxPool.apply(stacked(x, in_dims[0], info.batch_size), keep), (0, 0)


@launched
def _gradient(winners: Tensor, dy: Tensor, height: int, width: int) -> Tensor:
    dy = dense_pixels(dy, dy.dtype)
    rows, batch, channels = dy.shape[:3]
    dx = empty_activation((rows, batch, channels, height, width), dy)
    pixels, wide = dy[0].numel() // channels, next_power(channels)
    block, (live, skips) = max(1, NUMBERS_BACK // wide), skipping(rows, dy)
    for first, count in row_launches(rows):
        _backward[(triton.cdiv(pixels, block), count)](
            winners, dy, dx, live, first, dy.stride(0), pixels, dx[0].numel(), SKIPS=skips,
            **_sizes(height, width, channels), CHANNELS=wide, BLOCK=block, num_warps=4,
        )  # fmt: skip
    return dx


def max_pool(x: Tensor) -> Tensor:
    """Pool images of one row, or of all; winners are kept where gradients are computed."""
    out: Tensor = _MaxPool.apply(x, torch.is_grad_enabled())[0]
    return out
