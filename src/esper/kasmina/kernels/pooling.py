"""Max-pooling of 2x2 windows on a GPU, forward and back, without a table of winners.

Bytes per input element of s bytes (2 or 4), the floor: forward 1.25 s (all read, a quarter
written); backward 2.25 s (input and gradient read, every input gradient written once). The backward
pass finds the winners anew from the saved input: torch keeps an 8-byte index for each output, 2
bytes more per input element each way, and fills the gradient with zeros first.

A window's winner is torch's: the first of equals in scan order, and the last NaN where there is
one. At an odd edge a window is cut off (`ceil_mode`).

Shape letters: N planes, H W.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512
"""Outputs of one program: 2,048 inputs."""


@triton.jit
def _outputs(planes, H: tl.constexpr, W: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """A program's first plane, its outputs counted from there, and which of them there are.

    Only the first plane may lie beyond 2**31 elements; everything behind it is 32 bits.
    """
    OUT: tl.constexpr = ((H + 1) // 2) * ((W + 1) // 2)
    CHUNKS: tl.constexpr = (GROUP * OUT + BLOCK - 1) // BLOCK
    first = tl.program_id(0) // CHUNKS * GROUP
    place = tl.program_id(0) % CHUNKS * BLOCK + tl.arange(0, BLOCK)
    plane = place // OUT
    return first.to(tl.int64), place, (plane < GROUP) & (first + plane < planes)


@triton.jit
def _inputs(planes, H: tl.constexpr, W: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """The upper rows of the same windows, twice as many places: where, and which there are; then
    which of the lower rows there are. Neighbours in memory are neighbours here."""
    ROWS: tl.constexpr = (H + 1) // 2
    WIDTH: tl.constexpr = (W + 1) // 2 * 2
    CHUNKS: tl.constexpr = (GROUP * ROWS * WIDTH + 2 * BLOCK - 1) // (2 * BLOCK)
    first = tl.program_id(0) // CHUNKS * GROUP
    place = tl.program_id(0) % CHUNKS * (2 * BLOCK) + tl.arange(0, 2 * BLOCK)
    plane = place // (ROWS * WIDTH)
    row = place // WIDTH % ROWS * 2
    column = place % WIDTH
    upper = (plane < GROUP) & (first + plane < planes)
    if W % 2:
        upper = upper & (column < W)
    lower = upper
    if H % 2:
        lower = upper & (row + 1 < H)
    return plane * (H * W) + row * W + column, upper, lower


@triton.jit
def _pairs(x, there, BLOCK: tl.constexpr):
    """Left and right value of one row of each window, as float32; -inf beyond the edge."""
    values = tl.load(x, mask=there, other=-float("inf")).to(tl.float32)
    return tl.split(tl.reshape(values, (BLOCK, 2)))


@triton.jit
def _better(value, best):
    return (value > best) | (value != value)


@triton.jit
def _pool_kernel(
    x, out, planes, H: tl.constexpr, W: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr
):
    first, place, valid = _outputs(planes, H, W, GROUP, BLOCK)
    source, upper, lower = _inputs(planes, H, W, GROUP, BLOCK)
    x += first * (H * W)
    best, b = _pairs(x + source, upper, BLOCK)
    c, d = _pairs(x + source + W, lower, BLOCK)
    best = tl.where(_better(b, best), b, best)
    best = tl.where(_better(c, best), c, best)
    best = tl.where(_better(d, best), d, best)
    out += first * (((H + 1) // 2) * ((W + 1) // 2))
    tl.store(out + place, best.to(out.dtype.element_ty), mask=valid)


@triton.jit
def _sent(grad, left, right, BLOCK: tl.constexpr):
    """The gradient of one row of each window, from which of its two values won."""
    none = tl.zeros_like(grad)
    pair = tl.join(tl.where(left, grad, none), tl.where(right, grad, none))
    return tl.reshape(pair, (2 * BLOCK,))


@triton.jit
def _unpool_kernel(
    x,
    grad,
    grad_x,
    planes,
    H: tl.constexpr,
    W: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    first, place, valid = _outputs(planes, H, W, GROUP, BLOCK)
    source, upper, lower = _inputs(planes, H, W, GROUP, BLOCK)
    x += first * (H * W)
    best, b = _pairs(x + source, upper, BLOCK)
    c, d = _pairs(x + source + W, lower, BLOCK)
    by_b = _better(b, best)
    best = tl.where(by_b, b, best)
    by_c = _better(c, best)
    best = tl.where(by_c, c, best)
    by_d = _better(d, best)

    grad += first * (((H + 1) // 2) * ((W + 1) // 2))
    sent = tl.load(grad + place, mask=valid, other=0.0)
    grad_x += first * (H * W)
    late = by_c | by_d
    tl.store(grad_x + source, _sent(sent, ~(by_b | late), by_b & ~late, BLOCK), mask=upper)
    tl.store(grad_x + source + W, _sent(sent, by_c & ~by_d, by_d, BLOCK), mask=lower)


class MaxPool2x2(torch.autograd.Function):
    """Pools the last two axes; any number of axes may stand before them, vmapped ones too."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        x = x.contiguous()
        height, width = x.shape[-2:]
        out = x.new_empty((*x.shape[:-2], (height + 1) // 2, (width + 1) // 2))
        grid, planes, group = _programs(x)
        with torch.cuda.device_of(x):
            _pool_kernel[grid](x, out, planes, height, width, group, BLOCK)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, grad = ctx.saved_tensors[0].contiguous(), grad.contiguous()
        grad_x = torch.empty_like(x)
        grid, planes, group = _programs(x)
        with torch.cuda.device_of(x):
            _unpool_kernel[grid](x, grad, grad_x, planes, *x.shape[-2:], group, BLOCK)
        return grad_x

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:
        """All rows in one call."""
        return MaxPool2x2.apply(x.movedim(in_dims[0], 0)), 0


def _programs(x: Tensor) -> tuple[tuple[int], int, int]:
    """Grid, planes, and planes of a group: small ones share a program, large ones take several."""
    height, width = x.shape[-2:]
    planes = x.numel() // (height * width)
    outputs = ((height + 1) // 2) * ((width + 1) // 2)
    group = max(1, BLOCK // outputs)
    return (triton.cdiv(planes, group) * triton.cdiv(group * outputs, BLOCK),), planes, group
