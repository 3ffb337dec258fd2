"""Initial parameters of new rows in one launch: `rng.uniform` of each row's streams, bit for bit.

Shape letters: N new rows, P parameters of one member.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.ops.flat_draws import FlatDraws
from esper.kasmina.ops.kernels.grids import block_of
from esper.kasmina.ops.kernels.layout import launched, row_launches
from esper.leyline.streams import GOLDEN, MIX_1, MIX_2, stream_keys

BLOCK: Final = 1024
"""Parameters per program."""
ROOT: Final = int(stream_keys(0).view(np.int64))
"""Where the streams of names start (`Initialiser.sample`)."""


@triton.jit
def _mix(bits, MIX_1: tl.constexpr, MIX_2: tl.constexpr):
    bits = (bits ^ (bits >> 30)) * MIX_1
    bits = (bits ^ (bits >> 27)) * MIX_2
    return bits ^ (bits >> 31)


@triton.jit
def _draw(
    flat, index, keys, words, counters, scales, constants, root, first, count,
    GOLDEN: tl.constexpr, MIX_1: tl.constexpr, MIX_2: tl.constexpr, BLOCK: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    at = (first + tl.program_id(1)).to(tl.int64)
    row = tl.load(index + at).to(tl.int64)
    start, offset, inside = block_of(count, BLOCK)
    place = start + offset
    step = tl.load(keys + at).to(tl.uint64, bitcast=True) + GOLDEN
    key = _mix((root.to(tl.uint64, bitcast=True) ^ _mix(step, MIX_1, MIX_2)) + GOLDEN, MIX_1, MIX_2)
    word = tl.load(words + place, mask=inside, other=0).to(tl.uint64, bitcast=True)
    key = _mix((key ^ word) + GOLDEN, MIX_1, MIX_2)
    counter = tl.load(counters + place, mask=inside, other=0).to(tl.uint64, bitcast=True)
    bits = (_mix(key + counter, MIX_1, MIX_2) >> 40).to(tl.int32)
    unit = tl.minimum((bits.to(tl.float32) + 0.5) * STEP, 1.0 - STEP)
    scale = tl.load(scales + place, mask=inside, other=0.0)
    constant = tl.load(constants + place, mask=inside, other=0.0)
    value = tl.where(scale != 0, (unit * 2.0 - 1.0) * scale, constant)
    tl.store(flat + row * count + place, value, mask=inside)


@launched
def draw_rows(flat_EP: Tensor, index_N: Tensor, keys_N: Tensor, draws: FlatDraws) -> None:
    """Initialise the rows `index_N`; `keys_N`: keys of their streams, as int64."""
    count = flat_EP.shape[1]
    for first, rows in row_launches(len(index_N)):
        _draw[(triton.cdiv(count, BLOCK), rows)](
            flat_EP, index_N, keys_N, draws.words, draws.counters, draws.scales, draws.constants,
            ROOT, first, count, GOLDEN=GOLDEN, MIX_1=MIX_1, MIX_2=MIX_2, BLOCK=BLOCK,
            STEP=2.0**-24, enable_fp_fusion=False,
        )  # fmt: skip
