"""Group norm, optionally with ReLU, of many members, channels last.

A program takes one sample, or several small ones: it reads an image once (2 bytes a number), takes
mean and variance of each group in float32, and writes what comes out (2 bytes). Backward reads the
input and the gradient and writes one, and leaves sums for scale and shift of its samples, which are
then added up in order.

Shape letters: R rows, B batch, C channels, G groups of channels, H W.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.kasmina.ops.kernel_scope import kernel_scope
from esper.kasmina.ops.kernels.grids import if_live, is_padding, left_of
from esper.kasmina.ops.kernels.layout import (
    Placement,
    dense_inside,
    dense_pixels,
    empty_activation,
    launched,
    live_rows,
    next_power,
    placed,
    row_launches,
    stacked,
)
from esper.kasmina.ops.kernels.sums import add_parts

MAX_VALUES: Final = 2**15
"""Maximum elements of a sample per program."""
NUMBERS: Final = 2**11
"""Elements per program if samples are smaller."""
NUMBERS_OF_A_WARP: Final = 2**10
EPSILON: Final = 1e-5
"""Added to the variance, as torch does."""


@triton.jit
def samples_of(first_row, batch, SAMPLES: tl.constexpr):
    """Return the program's first sample, the number of samples (SAMPLES at most), and its row."""
    first = tl.program_id(0).to(tl.int64) * SAMPLES
    row = (first_row + tl.program_id(1)).to(tl.int64)
    return first, left_of(batch, first, SAMPLES), row


@triton.jit
def places_of(
    left,
    SAMPLES: tl.constexpr, PLACES: tl.constexpr, PLACES_UP: tl.constexpr,
    GROUPS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Return offsets, channels and mask over (samples, pixels, groups, channels of a group)."""
    s = tl.arange(0, SAMPLES)[:, None, None, None]
    p = tl.arange(0, PLACES_UP)[None, :, None, None]
    g = tl.arange(0, GROUPS)[None, None, :, None]
    c = g * WIDTH + tl.arange(0, WIDTH)[None, None, None, :]
    place = (s * PLACES + p) * (GROUPS * WIDTH) + c
    return place, c, (p < PLACES) & (s < left) & (c < GROUPS * WIDTH)


@triton.jit
def _mean(value, count):
    """Mean over the pixels and channels of each group."""
    return (tl.sum(tl.sum(value, axis=3), axis=1) / count)[:, None, :, None]


@triton.jit
def _forward(
    x, weight, bias, y, means, inverses, rows, alpha, kept, live, first_row, x_row, weight_row,
    bias_row, batch,
    SKIPS: tl.constexpr, TAKES: tl.constexpr, KEEPS: tl.constexpr, ADDS: tl.constexpr,
    SAMPLES: tl.constexpr, PLACES: tl.constexpr, PLACES_UP: tl.constexpr, GROUPS: tl.constexpr,
    WIDTH: tl.constexpr, EPS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """y = norm of x; TAKES: of rows[g] of x, KEEPS: which are copied; ADDS: times alpha, added to
    rows[g] of y"""
    first, left, row = samples_of(first_row, batch, SAMPLES)
    if is_padding(live, row, SKIPS):
        return
    source, target = row, row
    if TAKES:
        source = tl.load(rows + row).to(tl.int64)
    if ADDS:
        target = tl.load(rows + row).to(tl.int64)
    place, c, inside = places_of(left, SAMPLES, PLACES, PLACES_UP, GROUPS, WIDTH)
    size = PLACES * GROUPS * WIDTH
    s = tl.arange(0, SAMPLES)[:, None, None, None]
    read = inside & (s < if_live(live, row, left, SKIPS))
    sample = row * batch + first
    value = tl.load(x + (source * x_row + first * size) + place, mask=read, other=0.0)
    if KEEPS:
        tl.store(kept + sample * size + place, value, mask=inside)
    value = value.to(tl.float32)
    mean = _mean(value, PLACES * WIDTH)
    apart = tl.where(inside, value - mean, 0.0)
    inverse = tl.rsqrt(_mean(apart * apart, PLACES * WIDTH) + EPS)
    scale = tl.load(weight + row * weight_row + c).to(tl.float32)
    shift = tl.load(bias + row * bias_row + c).to(tl.float32)
    out = apart * inverse * scale + shift
    if RELU:
        out = tl.where(out <= 0, 0.0, out)  # NaN stays NaN
    out = out.to(y.dtype.element_ty)
    goal = y + (target * batch + first) * size + place
    if ADDS:
        before = tl.load(goal, mask=inside, other=0.0).to(tl.float32)
        out = (before + tl.load(alpha + row) * out.to(tl.float32)).to(y.dtype.element_ty)
    tl.store(goal, out, mask=inside)
    g = tl.arange(0, GROUPS)[None, None, :, None]
    own = sample * GROUPS + (s * GROUPS + g)
    tl.store(means + own, mean, mask=s < left)
    tl.store(inverses + own, inverse, mask=s < left)


@triton.jit
def _backward(
    x, dy, weight, bias, means, inverses, dx, sums, rows, alpha, live, first_row, x_row,
    dy_row, weight_row, bias_row, batch,
    SKIPS: tl.constexpr, TAKES: tl.constexpr, ADDS: tl.constexpr,
    SAMPLES: tl.constexpr, PLACES: tl.constexpr, PLACES_UP: tl.constexpr, GROUPS: tl.constexpr,
    WIDTH: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """The gradients; ADDS: dy is in rows[g], to be multiplied by alpha; TAKES: dx is added to
    rows[g]"""
    first, left, row = samples_of(first_row, batch, SAMPLES)
    channel = tl.arange(0, GROUPS)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    own = (row * tl.num_programs(0) + tl.program_id(0)) * (2 * GROUPS * WIDTH) + channel
    if is_padding(live, row, SKIPS):
        nothing = tl.zeros((GROUPS, WIDTH), tl.float32)
        tl.store(sums + own, nothing)
        tl.store(sums + own + GROUPS * WIDTH, nothing)
        return
    source, target = row, row
    if ADDS:
        source = tl.load(rows + row).to(tl.int64)
    if TAKES:
        target = tl.load(rows + row).to(tl.int64)
    place, c, inside = places_of(left, SAMPLES, PLACES, PLACES_UP, GROUPS, WIDTH)
    size = PLACES * GROUPS * WIDTH
    s = tl.arange(0, SAMPLES)[:, None, None, None]
    read = inside & (s < if_live(live, row, left, SKIPS))
    value = tl.load(x + (row * x_row + first * size) + place, mask=read, other=0.0)
    back = tl.load(dy + (source * dy_row + first * size) + place, mask=read, other=0.0)
    value, back = value.to(tl.float32), back.to(tl.float32)
    if ADDS:
        back = (back * tl.load(alpha + row)).to(dy.dtype.element_ty).to(tl.float32)
    sample = row * batch + first
    g = tl.arange(0, GROUPS)[None, None, :, None]
    kept = sample * GROUPS + (s * GROUPS + g)
    mean = tl.load(means + kept, mask=s < left, other=0.0)
    inverse = tl.load(inverses + kept, mask=s < left, other=0.0)
    scale = tl.load(weight + row * weight_row + c).to(tl.float32)
    even = tl.where(inside, (value - mean) * inverse, 0.0)
    if RELU:
        shift = tl.load(bias + row * bias_row + c).to(tl.float32)
        back = tl.where(even * scale + shift <= 0, 0.0, back)
    pull = back * scale
    level, tilt = _mean(pull, PLACES * WIDTH), _mean(pull * even, PLACES * WIDTH)
    out = (pull - level - even * tilt) * inverse
    out = out.to(dx.dtype.element_ty)
    goal = dx + (target * batch + first) * size + place
    if TAKES:
        before = tl.load(goal, mask=inside, other=0.0).to(tl.float32)
        out = (before + out.to(tl.float32)).to(dx.dtype.element_ty)
    tl.store(goal, out, mask=inside)
    tl.store(sums + own, tl.sum(tl.sum(back * even, axis=1), axis=0))
    tl.store(sums + own + GROUPS * WIDTH, tl.sum(tl.sum(back, axis=1), axis=0))


def supported(x: Tensor, groups: int) -> bool:
    """Whether a sample `[..., C, H, W]` is supported: channels and groups are powers of two."""
    channels, height, width = x.shape[-3:]
    powers = channels == next_power(channels) and groups == next_power(groups)
    return powers and next_power(height * width) * channels <= MAX_VALUES


def sizes(x: Tensor, groups: int) -> tuple[dict[str, int], int, int]:
    """Return the constants of a launch, programs per row, and number of warps."""
    channels, places = x.shape[2], x.shape[3] * x.shape[4]
    up = next_power(places)
    samples = max(1, min(next_power(x.shape[1]), NUMBERS // (up * channels)))
    constants = {"SAMPLES": samples, "PLACES": places, "PLACES_UP": up}
    constants |= {"GROUPS": groups, "WIDTH": channels // groups}
    warps = max(1, min(8, samples * up * channels // NUMBERS_OF_A_WARP))
    return constants, triton.cdiv(x.shape[1], samples), warps


@launched
def run_forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    groups: int,
    relu: bool,
    y: Tensor,
    place: Placement | None = None,
    kept: Tensor | None = None,
) -> Tensor:
    """Write to `y`; return `[R, 2, B, G]`: mean and inverse deviation of each group.

    `place`: the rows it reads, of which copies go to `kept`, or adds to.
    """
    weight, bias = dense_inside(weight), dense_inside(bias)
    rows, batch = len(weight), x.shape[1]
    statistics = torch.empty(2, rows, batch, groups, dtype=torch.float32, device=x.device)
    constants, programs, warps = sizes(x, groups)
    index, alpha, live, skips = placed(rows, x, place)
    takes, adds = (False, False) if place is None else (place.takes, place.adds)
    for first, count in row_launches(rows):
        _forward[(programs, count)](
            x, weight, bias, y, statistics[0], statistics[1], index, alpha,
            x if kept is None else kept, live, first, x.stride(0), weight.stride(0),
            bias.stride(0), batch, SKIPS=skips, TAKES=takes, KEEPS=kept is not None, ADDS=adds,
            **constants, EPS=EPSILON, RELU=relu, num_warps=warps,
        )  # fmt: skip
    return statistics.movedim(0, 1)


def _normalised(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, relu: bool
) -> tuple[Tensor, Tensor]:
    """Return the output, and mean and inverse deviation of each group."""
    x = dense_pixels(x, x.dtype)
    y = empty_activation(x.shape, x)
    return y, run_forward(x, weight, bias, groups, relu, y)


class Normalise(torch.autograd.Function):
    """`x` `[R, B, C, H, W]`, scale and shift `[R, C]` -> the same shape; or one row of it all."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, groups: int, relu: bool
    ) -> tuple[Tensor, Tensor]:
        if x.ndim == 4:
            y, statistics = Normalise.forward(x[None], weight[None], bias[None], groups, relu)
            return y[0], statistics[0]
        return _normalised(x, weight, bias, groups, relu)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, bias, ctx.groups, ctx.relu = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)  # of statistics
        ctx.save_for_backward(x, weight, bias, output[1])
        ctx.live = live_rows(1 if x.ndim == 4 else len(x))

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dy: Tensor, _: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, None, None]:
        given = x, weight, bias, statistics = ctx.saved_tensors
        one_row = x.ndim == 4
        x, weight, bias, statistics, dy = (v[None] if one_row else v for v in (*given, dy))
        with kernel_scope(live_R=ctx.live):
            x, dy = dense_pixels(x, x.dtype), dense_pixels(dy, x.dtype)
            dx = empty_activation(x.shape, x)
            dw, db = run_backward(x, dy, weight, bias, statistics, ctx.groups, ctx.relu, dx)
        dx, dw, db = (v[0] if one_row else v for v in (dx, dw, db))
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


@launched
def run_backward(
    x: Tensor,
    dy: Tensor,
    weight: Tensor,
    bias: Tensor,
    statistics: Tensor,
    groups: int,
    relu: bool,
    dx: Tensor,
    place: Placement | None = None,
) -> tuple[Tensor, Tensor]:
    """Write to `dx`; return the gradients of scale and shift."""
    weight, bias = dense_inside(weight), dense_inside(bias)
    rows, batch, channels = x.shape[:3]
    constants, programs, warps = sizes(x, groups)
    index, alpha, live, skips = placed(rows, x, place)
    takes, adds = (False, False) if place is None else (place.takes, place.adds)
    sums = torch.empty(rows, programs, 2, channels, dtype=torch.float32, device=x.device)
    means, inverses = statistics.movedim(1, 0)
    for first, count in row_launches(rows):
        _backward[(programs, count)](
            x, dy, weight, bias, means, inverses, dx, sums, index, alpha, live, first, x.stride(0),
            dy.stride(0), weight.stride(0), bias.stride(0), batch, SKIPS=skips, TAKES=takes,
            ADDS=adds, **constants, RELU=relu, num_warps=warps,
        )  # fmt: skip
    dw, db = add_parts(sums).unbind(1)
    return dw, db


def normalise(x: Tensor, weight: Tensor, bias: Tensor, groups: int, relu: bool) -> Tensor:
    """Typed `Normalise.apply`, without the saved statistics."""
    out: Tensor = Normalise.apply(x, weight, bias, groups, relu)[0]
    return out
