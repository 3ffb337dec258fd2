"""Triton kernel of `rng.random_words`, bit for bit.

Shape letters: R rows, N words of a row.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK: Final = 1024
"""Words per program."""


@triton.jit
def _hash(
    keys,
    out,
    count,
    GOLDEN: tl.constexpr,
    MIX_1: tl.constexpr,
    MIX_2: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out[r, n] = hash(keys[r], n)"""
    row = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + row).to(tl.uint64, bitcast=True)
    low = (key & 0xFFFFFFFF).to(tl.uint32)
    high = (key >> 32).to(tl.uint32)
    bits = n.to(tl.uint32) * GOLDEN + low
    bits = ((bits ^ (bits >> 16)) + high) * MIX_1
    bits = (bits ^ (bits >> 13)) * MIX_2
    tl.store(out + row * count + n, bits.to(tl.int32, bitcast=True), mask=n < count)


def hash_words(keys_R: Tensor, count: int, golden: int, mix_1: int, mix_2: int) -> Tensor:
    """`[R, count]` int32 words."""
    keys_R = keys_R.contiguous()
    out = torch.empty(len(keys_R), count, dtype=torch.int32, device=keys_R.device)
    if out.numel():
        grid = (triton.cdiv(count, BLOCK), len(keys_R))
        with torch.cuda.device_of(keys_R):  # Triton launches on the current device
            _hash[grid](keys_R, out, count, golden, mix_1, mix_2, BLOCK=BLOCK)
    return out
