"""Squeeze-excite seeds of many members in one kernel: means, two small layers, factors.

A program holds whole images, so it reads them once (2 bytes a number) and writes what comes out.
Backward computes the layers again from the means, adds up their gradients over its images, and
leaves these sums, which are then added up in order. The layers are computed in float32.

Shape letters: R rows, B batch, C channels, D hidden channels, H W.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.ops.block_parameters import ExciteParameters
from esper.kasmina.ops.kernels.grids import if_live, is_padding, left_of
from esper.kasmina.ops.kernels.layout import Placement, launched, placed, row_launches
from esper.kasmina.ops.kernels.normalise import sizes
from esper.kasmina.ops.kernels.sums import add_parts

SERIES: Final = 4
"""Samples, or tiles of small samples, that a program works through backward: fewer sums."""


@triton.jit
def _images(
    left, SAMPLES: tl.constexpr, PLACES: tl.constexpr, PLACES_UP: tl.constexpr, C: tl.constexpr
):
    """Return offsets and mask over (samples, pixels, channels)."""
    s = tl.arange(0, SAMPLES)[:, None, None]
    p = tl.arange(0, PLACES_UP)[None, :, None]
    c = tl.arange(0, C)[None, None, :]
    return (s * PLACES + p) * C + c, (p < PLACES) & (s < left) & (c < C)


@triton.jit
def _layers(row, first, second, shift, end, C: tl.constexpr, D: tl.constexpr):
    """Load the parameters of a row: `[D, C]`, `[D]`, `[C, D]`, `[C]`."""
    c, d = tl.arange(0, C), tl.arange(0, D)
    return (
        tl.load(first + row * (D * C) + d[:, None] * C + c[None, :]),
        tl.load(shift + row * D + d),
        tl.load(second + row * (C * D) + c[:, None] * D + d[None, :]),
        tl.load(end + row * C + c),
    )


@triton.jit
def _hidden(mean, first, shift):
    """Return what reaches the hidden channels `[samples, D]`, before SiLU."""
    return tl.sum(mean[:, None, :] * first[None, :, :], axis=2) + shift[None, :]


@triton.jit
def _strength(hidden, second, end):
    """Return tanh of the second layer `[samples, C]`."""
    reached = hidden * tl.sigmoid(hidden)
    out = tl.sum(reached[:, None, :] * second[None, :, :], axis=2) + end[None, :]
    return 2.0 * tl.sigmoid(2.0 * out) - 1.0


@triton.jit
def _forward(
    x, first, shift, second, end, gamma, y, rows, alpha, kept, live, first_row, x_row, batch,
    SKIPS: tl.constexpr, TAKES: tl.constexpr, KEEPS: tl.constexpr, ADDS: tl.constexpr,
    SAMPLES: tl.constexpr, PLACES: tl.constexpr, PLACES_UP: tl.constexpr, C: tl.constexpr,
    D: tl.constexpr,
):  # fmt: skip
    """y = x * factor; TAKES: rows[g] of x, KEEPS: which are copied; ADDS: times alpha, added to
    rows[g] of y"""
    row = (first_row + tl.program_id(1)).to(tl.int64)
    if is_padding(live, row, SKIPS):
        return
    source, target = row, row
    if TAKES:
        source = tl.load(rows + row).to(tl.int64)
    if ADDS:
        target = tl.load(rows + row).to(tl.int64)
    begin = tl.program_id(0).to(tl.int64) * SAMPLES
    left = left_of(batch, begin, SAMPLES)
    place, inside = _images(left, SAMPLES, PLACES, PLACES_UP, C)
    value = tl.load(x + (source * x_row + begin * (PLACES * C)) + place, mask=inside, other=0.0)
    if KEEPS:
        tl.store(kept + (row * batch + begin) * (PLACES * C) + place, value, mask=inside)
    value = value.to(tl.float32)
    own_first, own_shift, own_second, own_end = _layers(row, first, second, shift, end, C, D)
    hidden = _hidden(tl.sum(value, axis=1) / PLACES, own_first, own_shift)
    factor = _strength(hidden, own_second, own_end)
    factor = factor * tl.load(gamma + row * C + tl.arange(0, C))[None, :]
    out = (value * factor[:, None, :]).to(y.dtype.element_ty)
    goal = y + (target * batch + begin) * (PLACES * C) + place
    if ADDS:
        before = tl.load(goal, mask=inside, other=0.0).to(tl.float32)
        out = (before + tl.load(alpha + row) * out.to(tl.float32)).to(y.dtype.element_ty)
    tl.store(goal, out, mask=inside)


@triton.jit
def _backward(
    x, dy, first, shift, second, end, gamma, dx, sums, rows, alpha, live, first_row, x_row, dy_row,
    batch, SKIPS: tl.constexpr, TAKES: tl.constexpr, ADDS: tl.constexpr, SERIES: tl.constexpr,
    SAMPLES: tl.constexpr, PLACES: tl.constexpr, PLACES_UP: tl.constexpr, C: tl.constexpr,
    D: tl.constexpr,
):  # fmt: skip
    """The gradients; ADDS: dy is in rows[g], to be multiplied by alpha; TAKES: dx is added to
    rows[g]. Sums are those of first, shift, second, end, gamma."""
    row = (first_row + tl.program_id(1)).to(tl.int64)
    source, target, strength = row, row, 1.0
    if TAKES:
        target = tl.load(rows + row).to(tl.int64)
    if ADDS:
        source, strength = tl.load(rows + row).to(tl.int64), tl.load(alpha + row)
    own_first, own_shift, own_second, own_end = _layers(row, first, second, shift, end, C, D)
    own_gamma = tl.load(gamma + row * C + tl.arange(0, C))
    dfirst = tl.zeros((D, C), tl.float32)
    dsecond = tl.zeros((C, D), tl.float32)
    dshift, dend, dgamma = tl.sum(dfirst, axis=1), tl.sum(dsecond, axis=1), tl.sum(dfirst, axis=0)
    for turn in range(if_live(live, row, SERIES, SKIPS)):
        begin = (tl.program_id(0).to(tl.int64) * SERIES + turn) * SAMPLES
        left = left_of(batch, begin, SAMPLES)
        place, inside = _images(left, SAMPLES, PLACES, PLACES_UP, C)
        value = tl.load(x + (row * x_row + begin * (PLACES * C)) + place, mask=inside, other=0.0)
        arrived = dy + (source * dy_row + begin * (PLACES * C)) + place
        back = tl.load(arrived, mask=inside, other=0.0)
        value, back = value.to(tl.float32), back.to(tl.float32)
        if ADDS:
            back = (back * strength).to(dy.dtype.element_ty).to(tl.float32)
        mean = tl.sum(value, axis=1) / PLACES
        hidden = _hidden(mean, own_first, own_shift)
        tanh = _strength(hidden, own_second, own_end)
        bent = tl.sigmoid(hidden)
        reached = hidden * bent
        dfactor = tl.sum(back * value, axis=1)
        dgamma += tl.sum(dfactor * tanh, axis=0)
        dout = dfactor * own_gamma[None, :] * (1.0 - tanh * tanh)
        dend += tl.sum(dout, axis=0)
        dsecond += tl.sum(dout[:, :, None] * reached[:, None, :], axis=0)
        dhidden = tl.sum(dout[:, :, None] * own_second[None, :, :], axis=1)
        dhidden = dhidden * (bent * (1.0 + hidden * (1.0 - bent)))
        dshift += tl.sum(dhidden, axis=0)
        dfirst += tl.sum(dhidden[:, :, None] * mean[:, None, :], axis=0)
        dmean = tl.sum(dhidden[:, :, None] * own_first[None, :, :], axis=1) / PLACES
        out = back * (tanh * own_gamma[None, :])[:, None, :] + dmean[:, None, :]
        out = out.to(dx.dtype.element_ty)
        goal = dx + (target * batch + begin) * (PLACES * C) + place
        if TAKES:
            before = tl.load(goal, mask=inside, other=0.0).to(tl.float32)
            out = (before + out.to(tl.float32)).to(dx.dtype.element_ty)
        tl.store(goal, out, mask=inside)
    c, d = tl.arange(0, C), tl.arange(0, D)
    sums += (row * tl.num_programs(0) + tl.program_id(0)) * (2 * C * D + 2 * C + D)
    tl.store(sums + d[:, None] * C + c[None, :], dfirst)
    tl.store(sums + C * D + d, dshift)
    tl.store(sums + (C * D + D) + c[:, None] * D + d[None, :], dsecond)
    tl.store(sums + (2 * C * D + D) + c, dend)
    tl.store(sums + (2 * C * D + D + C) + c, dgamma)


def _constants(x: Tensor, own: ExciteParameters) -> tuple[dict[str, int], int, int]:
    """Return the constants of a launch, programs per row, and number of warps."""
    constants, programs, warps = sizes(x, 1)
    del constants["GROUPS"], constants["WIDTH"]
    return constants | {"C": x.shape[2], "D": own.shift.shape[1]}, programs, warps


def _given(own: ExciteParameters) -> list[Tensor]:
    return [value.float().contiguous() for value in own]


@launched
def run_forward(
    x: Tensor, own: ExciteParameters, y: Tensor, place: Placement, kept: Tensor | None
) -> None:
    """Write to `y`; `place`: the rows it reads, of which copies go to `kept`, or adds to."""
    constants, programs, warps = _constants(x, own)
    index, alpha, live, skips = placed(len(own.shift), x, place)
    for first, count in row_launches(len(own.shift)):
        _forward[(programs, count)](
            x, *_given(own), y, index, alpha, x if kept is None else kept, live, first,
            x.stride(0), x.shape[1], SKIPS=skips, TAKES=place.takes, KEEPS=kept is not None,
            ADDS=place.adds, **constants, num_warps=warps,
        )  # fmt: skip


@launched
def run_backward(
    x: Tensor, dy: Tensor, own: ExciteParameters, dx: Tensor, place: Placement
) -> list[Tensor]:
    """Write to `dx`; return the gradients of the parameters."""
    constants, programs, warps = _constants(x, own)
    programs, rows = triton.cdiv(programs, SERIES), len(own.gamma)
    index, alpha, live, skips = placed(rows, x, place)
    counts = [value[0].numel() for value in own]
    sums = torch.empty(rows, programs, sum(counts), dtype=torch.float32, device=x.device)
    for first, count in row_launches(rows):
        _backward[(programs, count)](
            x, dy, *_given(own), dx, sums, index, alpha, live, first, x.stride(0), dy.stride(0),
            x.shape[1], SKIPS=skips, TAKES=place.takes, ADDS=place.adds, SERIES=SERIES,
            **constants, num_warps=warps,
        )  # fmt: skip
    found = add_parts(sums).split(counts, dim=1)
    return [value.reshape(like.shape) for value, like in zip(found, own, strict=True)]
