"""Blend seeds into rows of an activation in one pass, each row with its own operator.

The operators are those of `kasmina.blending`. Forward reads a row and its delta and writes the row;
backward reads the row's gradient, the delta and a copy of the row as it was, writes the gradient of
the delta, and adds to the row's gradient what reaches the activation through the operator. Torch
would compute all operators for all rows and select, in a pass over memory for each operation.

An entry with alpha 0 is unused: it touches no row, and its delta gets a gradient of 0.

Shape letters: R rows, G rows of one group, N numbers of a row, C channels.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.kasmina.kernels.grids import block_of, if_written, left_of
from esper.kasmina.kernels.launches import row_launches
from esper.kasmina.kernels.layout import launched, live_rows, only_live, skipping
from esper.kasmina.kernels.rows import same_layout
from esper.kasmina.kernels.sums import add_parts
from esper.leyline.actions import BlendStyle

BLOCK: Final = 2048
"""Elements per program forward, and of a block backward."""
BLOCKS: Final = 8
"""Blocks per program backward: fewer parts of the gates' sums."""
MOST_CHANNELS: Final = 256
"""Maximum channels of a gate."""

_MULTIPLY: tl.constexpr = tl.constexpr(int(BlendStyle.MULTIPLY))
_GATE: tl.constexpr = tl.constexpr(int(BlendStyle.GATE))


@triton.jit
def _tanh(v):
    return 2.0 * tl.sigmoid(2.0 * v) - 1.0


@triton.jit
def _blend(
    h, index, alpha, style, delta, weight, bias, first, size,
    GATED: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """h[index[g]] += alpha[g] * update(h[index[g]], delta[g])"""
    at = (first + tl.program_id(1)).to(tl.int64)
    row, factor = tl.load(index + at).to(tl.int64), tl.load(alpha + at)
    kind = tl.load(style + at).to(tl.int32)
    start, offset, inside = block_of(tl.where(factor != 0, size, 0), BLOCK)
    update = tl.load(delta + (at * size + start) + offset, mask=inside, other=0.0).to(tl.float32)
    place = h + (row * size + start) + offset
    value = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    if kind == _MULTIPLY:
        update = value * _tanh(update)
    if GATED:  # noqa: SIM102 - a constant, apart from what is known on the device
        if kind == _GATE:
            channel = offset % C  # a program starts at a multiple of C
            w, b = tl.load(weight + at * C + channel), tl.load(bias + at * C + channel)
            update = update * tl.sigmoid(w * value + b)
    tl.store(place, (value + factor * update).to(h.dtype.element_ty), mask=inside)


@triton.jit
def _blend_back(
    grad, index, alpha, style, delta, kept, weight, bias, ddelta, partial, alive, first, size,
    parts, SKIPS: tl.constexpr, GATED: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    """Gradient of the delta, of the gate (a part of its sums), and in place that of the row."""
    at = (first + tl.program_id(1)).to(tl.int64)
    row, factor = tl.load(index + at).to(tl.int64), tl.load(alpha + at)
    kind = tl.load(style + at).to(tl.int32)
    offset = tl.arange(0, BLOCK)
    read_size = tl.where(factor != 0, size, 0)
    written_size = if_written(alive, at, size, SKIPS)
    dw = tl.zeros((BLOCK,), tl.float32)
    db = tl.zeros((BLOCK,), tl.float32)
    w, b = dw, dw
    if GATED:
        w = tl.load(weight + at * C + offset % C)  # a block starts at a multiple of C
        b = tl.load(bias + at * C + offset % C)
    for block in range(BLOCKS):
        start = (tl.program_id(0).to(tl.int64) * BLOCKS + block) * BLOCK
        inside = offset < left_of(written_size, start, BLOCK)
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
        sums = partial + (at * parts + tl.program_id(0)) * (2 * C) + tl.arange(0, C)
        tl.store(sums, tl.sum(tl.reshape(dw, (BLOCK // C, C)), axis=0))
        tl.store(sums + C, tl.sum(tl.reshape(db, (BLOCK // C, C)), axis=0))


def gates_fit(h: Tensor) -> bool:
    """Whether gates of `h` `[R, B, C, H, W]` are a kernel's: channels last, a power of two."""
    channels = h.shape[2] if h.ndim == 5 else 0
    power = channels > 0 and channels & (channels - 1) == 0
    return power and channels <= MOST_CHANNELS and h.stride(2) == 1


class Blend(torch.autograd.Function):
    """(h, rows as copied from it, delta, index, alpha, style, weight and bias of gates or None,
    owned, own gradient) -> h with the deltas blended into the rows `index`.

    The copied rows are no input of autograd: what reaches them is added to the rows of h.
    """

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        kept: Tensor,
        delta: Tensor,
        index: Tensor,
        alpha: Tensor,
        style: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        owned: bool,
        own_gradient: bool,
    ) -> Tensor:
        out = h.view_as(h) if owned else h.clone()
        delta = same_layout(delta, h.stride(), h.dtype)
        gates = None if weight is None or bias is None else (_flat(weight), _flat(bias))
        _launch_blend(out, index, alpha, style, delta, gates)
        ctx.layout, ctx.own_gradient = (h.stride(), h.dtype), own_gradient
        ctx.gated = gates is not None
        ctx.live = live_rows(len(index))
        ctx.save_for_backward(kept, delta, index, alpha, style, *(gates or ()))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        kept, delta, index, alpha, style, *gates = ctx.saved_tensors
        total = same_layout(grad, *ctx.layout)
        if total is grad and not ctx.own_gradient:
            total = grad.clone()
        with only_live(ctx.live):
            found = _launch_blend_back(total, index, alpha, style, delta, kept, gates)
        return (total, None, found[0], None, None, None, *found[1:], None, None)


def _flat(value: Tensor) -> Tensor:
    return value.float().reshape(len(value), -1).contiguous()


@launched
def _launch_blend(
    h: Tensor,
    index: Tensor,
    alpha: Tensor,
    style: Tensor,
    delta: Tensor,
    gates: tuple[Tensor, Tensor] | None,
) -> None:
    size = h[0].numel()
    weight, bias = gates or (alpha, alpha)
    for first, count in row_launches(len(index)):
        _blend[(triton.cdiv(size, BLOCK), count)](
            h, index, alpha, style, delta, weight, bias, first, size,
            GATED=gates is not None, C=weight[0].numel(), BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip


@launched
def _launch_blend_back(
    grad: Tensor,
    index: Tensor,
    alpha: Tensor,
    style: Tensor,
    delta: Tensor,
    kept: Tensor,
    gates: list[Tensor],
) -> tuple[Tensor | None, ...]:
    """Change `grad` in place; return the gradients of delta, and of weight and bias of gates."""
    size, ddelta = grad[0].numel(), torch.empty_like(delta)
    weight, bias = gates or (alpha, alpha)
    channels, parts = weight[0].numel(), triton.cdiv(size, BLOCK * BLOCKS)
    partial = alpha.new_empty((len(index), parts, 2, channels)) if gates else alpha
    alive, skips = skipping(len(index), alpha)
    for first, count in row_launches(len(index)):
        _blend_back[(parts, count)](
            grad, index, alpha, style, delta, kept, weight, bias, ddelta, partial, alive,
            first, size, parts, SKIPS=skips, GATED=bool(gates), C=channels, BLOCK=BLOCK,
            BLOCKS=BLOCKS, num_warps=4,
        )  # fmt: skip
    if not gates:
        return ddelta, None, None
    dweight, dbias = add_parts(partial).unbind(1)
    return ddelta, dweight, dbias


def blend_rows(
    h: Tensor,
    kept: Tensor,
    delta: Tensor,
    index: Tensor,
    alpha: Tensor,
    style: Tensor,
    gates: tuple[Tensor, Tensor] | None,
    owned: bool,
    own_gradient: bool,
) -> Tensor:
    """Return `h` with deltas blended into the rows `index`; `h` is dense, a copy of rows `kept`.

    `gates`: weight and bias `[G, C]`, where an entry may have style GATE (`gates_fit` must hold).
    `owned`, `own_gradient`: nothing else refers to `h`, or to its gradient.
    """
    weight, bias = gates or (None, None)
    out: Tensor = Blend.apply(
        h, kept, delta, index, alpha, style, weight, bias, owned, own_gradient
    )
    return out
