"""Group norm, and the ReLU behind it, of many members at once, channels last.

One program a sample: it reads the image once (2 bytes a number), takes mean and variance of each
group in float32, and writes what comes out (2 bytes). Backward reads the input and the gradient and
writes one, and leaves the sums for scale and shift of each sample, which are then added up in order.

Shape letters: R rows, B batch, C channels, G groups of channels, H W.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.kernels.layout import channels_last, empty_activation, next_power, stacked

LARGEST: Final = 2**15
"""Numbers of a sample that one program takes."""
EPSILON: Final = 1e-5
"""Added to the variance, as torch does."""


@triton.jit
def _forward(
    x, weight, bias, y, statistics, x_row, weight_row, bias_row, batch,
    PLACES: tl.constexpr, PLACES_UP: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr,
    EPS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    sample, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    size = PLACES * GROUPS * WIDTH
    p = tl.arange(0, PLACES_UP)[:, None, None]
    c = tl.arange(0, GROUPS)[None, :, None] * WIDTH + tl.arange(0, WIDTH)[None, None, :]
    place = p * (GROUPS * WIDTH) + c
    inside = (p < PLACES) & (c >= 0)
    value = tl.load(x + row * x_row + sample * size + place, mask=inside, other=0.0)
    value = value.to(tl.float32)
    count = PLACES * WIDTH
    mean = tl.sum(tl.sum(value, axis=2), axis=0) / count
    apart = tl.where(inside, value - mean[None, :, None], 0.0)
    spread = tl.sum(tl.sum(apart * apart, axis=2), axis=0) / count
    inverse = tl.rsqrt(spread + EPS)
    scale = tl.load(weight + row * weight_row + c).to(tl.float32)
    shift = tl.load(bias + row * bias_row + c).to(tl.float32)
    out = apart * inverse[None, :, None] * scale + shift
    if RELU:
        out = tl.where(out <= 0, 0.0, out)  # NaN stays NaN
    target = y + (row * batch + sample) * size + place
    tl.store(target, out.to(y.dtype.element_ty), mask=inside)
    g = tl.arange(0, GROUPS)
    kept = statistics + (row * batch + sample) * GROUPS * 2 + g * 2
    tl.store(kept, mean)
    tl.store(kept + 1, inverse)


@triton.jit
def _backward(
    x, dy, weight, bias, statistics, dx, sums, x_row, dy_row, weight_row, bias_row, batch, rows,
    PLACES: tl.constexpr, PLACES_UP: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr,
    RELU: tl.constexpr,
):  # fmt: skip
    sample, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    size = PLACES * GROUPS * WIDTH
    p = tl.arange(0, PLACES_UP)[:, None, None]
    c = tl.arange(0, GROUPS)[None, :, None] * WIDTH + tl.arange(0, WIDTH)[None, None, :]
    place = p * (GROUPS * WIDTH) + c
    inside = (p < PLACES) & (c >= 0)
    value = tl.load(x + row * x_row + sample * size + place, mask=inside, other=0.0)
    back = tl.load(dy + row * dy_row + sample * size + place, mask=inside, other=0.0)
    value, back = value.to(tl.float32), back.to(tl.float32)
    g = tl.arange(0, GROUPS)
    kept = statistics + (row * batch + sample) * GROUPS * 2 + g * 2
    mean, inverse = tl.load(kept), tl.load(kept + 1)
    scale = tl.load(weight + row * weight_row + c).to(tl.float32)
    even = tl.where(inside, (value - mean[None, :, None]) * inverse[None, :, None], 0.0)
    if RELU:
        shift = tl.load(bias + row * bias_row + c).to(tl.float32)
        back = tl.where(even * scale + shift <= 0, 0.0, back)
    pull = back * scale
    count = PLACES * WIDTH
    level = tl.sum(tl.sum(pull, axis=2), axis=0) / count
    tilt = tl.sum(tl.sum(pull * even, axis=2), axis=0) / count
    out = (pull - level[None, :, None] - even * tilt[None, :, None]) * inverse[None, :, None]
    target = dx + (row * batch + sample) * size + place
    tl.store(target, out.to(dx.dtype.element_ty), mask=inside)
    channel = tl.arange(0, GROUPS)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    own = sums + (row * batch + sample) * (GROUPS * WIDTH) + channel
    tl.store(own, tl.sum(back * even, axis=0))
    tl.store(own + rows.to(tl.int64) * batch * (GROUPS * WIDTH), tl.sum(back, axis=0))


def supported(x: Tensor, groups: int) -> bool:
    """Whether a sample `[..., C, H, W]` fits: channels and groups are powers of two."""
    channels, height, width = x.shape[-3:]
    powers = channels == next_power(channels) and groups == next_power(groups)
    return powers and next_power(height * width) * channels <= LARGEST


def _sizes(x: Tensor, groups: int) -> tuple[dict[str, int], int]:
    """The constants of a launch, and how many warps it takes."""
    channels, places = x.shape[2], x.shape[3] * x.shape[4]
    up = next_power(places)
    constants = {"PLACES": places, "PLACES_UP": up, "GROUPS": groups, "WIDTH": channels // groups}
    return constants, max(1, min(8, up * channels // 1024))


class Normalise(torch.autograd.Function):
    """`x` `[R, B, C, H, W]`, scale and shift `[R, C]` -> the same shape; or one row of it all."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, groups: int, relu: bool
    ) -> tuple[Tensor, Tensor]:
        if x.ndim == 4:
            y, statistics = Normalise.forward(x[None], weight[None], bias[None], groups, relu)
            return y[0], statistics[0]
        x, step = channels_last(x, x.dtype)
        rows, batch, channels, height, width = x.shape
        y = empty_activation(rows, batch, channels, height, width, x)
        statistics = torch.empty(rows, batch, groups, 2, dtype=torch.float32, device=x.device)
        constants, warps = _sizes(x, groups)
        _forward[(batch, rows)](
            x, weight, bias, y, statistics, x.stride(0), weight.stride(0), bias.stride(0), batch,
            **constants, EPS=EPSILON, RELU=relu, num_warps=warps,
        )  # fmt: skip
        return y, statistics

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, bias, ctx.groups, ctx.relu = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, weight, bias, output[1])

    @staticmethod
    def backward(
        ctx: Any, dy: Tensor, _: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, weight, bias, statistics = ctx.saved_tensors
        if x.ndim == 4:
            parts = _gradients(
                x[None], dy[None], weight[None], bias[None], statistics[None], ctx.groups, ctx.relu
            )
            dx, dw, db = (part[0] for part in parts)
        else:
            dx, dw, db = _gradients(x, dy, weight, bias, statistics, ctx.groups, ctx.relu)
        return dx, dw, db, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        groups: int,
        relu: bool,
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        own = (
            stacked(v, d, info.batch_size)
            for v, d in zip((x, weight, bias), in_dims[:3], strict=True)
        )
        return Normalise.apply(*own, groups, relu), (0, 0)


def _gradients(
    x: Tensor,
    dy: Tensor,
    weight: Tensor,
    bias: Tensor,
    statistics: Tensor,
    groups: int,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the input, the scale and the shift."""
    (x, _), (dy, _) = channels_last(x, x.dtype), channels_last(dy, x.dtype)
    rows, batch, channels, height, width = x.shape
    dx = empty_activation(rows, batch, channels, height, width, x)
    sums = torch.empty(2, rows, batch, channels, dtype=torch.float32, device=x.device)
    constants, warps = _sizes(x, groups)
    _backward[(batch, rows)](
        x, dy, weight, bias, statistics, dx, sums, x.stride(0), dy.stride(0), weight.stride(0),
        bias.stride(0), batch, rows, **constants, RELU=relu, num_warps=warps,
    )  # fmt: skip
    dw, db = sums.sum(dim=2)
    return dx, dw, db
