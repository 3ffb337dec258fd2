"""64-bit offsets of our Triton kernels.

A row of 2**31 elements is legal (2,048 images of 128x128 with 64 channels), and an int32 offset
into it would overflow silently. So a program computes the offset of its first element in 64 bits,
and offsets from there in 32. `fused.image_fits` and `fused.row_fits` define the resulting limits.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def left_of(size, start, LIMIT: tl.constexpr):
    """Return how many of `size` elements there are from `start` (int64) on, LIMIT at most."""
    return tl.minimum(size - start, LIMIT).to(tl.int32)


@triton.jit
def block_of(size, BLOCK: tl.constexpr):
    """Return the program's part of a row of `size` elements: start (int64), offsets (int32),
    mask."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offset = tl.arange(0, BLOCK)
    return start, offset, offset < left_of(size, start, BLOCK)


@triton.jit
def if_live(live, row, count, SKIPS: tl.constexpr):
    """Return `count` for a row that is computed, 0 for one that `KernelScope.live_R` skips."""
    if SKIPS:
        count = tl.where(tl.load(live + row) > 0, count, 0)
    return count


@triton.jit
def is_padding(live, row, SKIPS: tl.constexpr):
    """Whether nobody reads what comes out of a row: its program ends at once. A row that changes
    another tensor in place (SKIPS is IN_PLACE) also does so at 0, where nothing changes."""
    found = False
    if SKIPS == 1:
        found = tl.load(live + row) < 0
    if SKIPS == 2:
        found = tl.load(live + row) <= 0
    return found
