"""How programs are numbered, and how far their numbers reach.

A row of 2**31 numbers is legal (2,048 images of 128x128 with 64 channels), and an int32 offset into
it would wrap around without an error. So a program takes the offset of its first number in 64 bits,
once; offsets from there stay in 32. `fused.image_fits` and `fused.row_fits` say how large images
and rows may be for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import triton
import triton.language as tl

MOST_ROWS: Final = 65_535
"""Programs that CUDA allows along the second and third axis of a grid; the first has 2**31 - 1."""


def row_launches(rows: int) -> Iterator[tuple[int, int]]:
    """First row and number of rows of each launch: one, unless there are more than a grid takes."""
    for first in range(0, rows, MOST_ROWS):
        yield first, min(MOST_ROWS, rows - first)


@triton.jit
def left_of(size, start, MOST: tl.constexpr):
    """How many of `size` there are from `start` (int64) on, MOST at most."""
    return tl.minimum(size - start, MOST).to(tl.int32)


@triton.jit
def block_of(size, BLOCK: tl.constexpr):
    """The program's part of a row of `size` numbers: where it begins (int64), the offsets of its
    numbers from there (int32), and which of them there are."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offset = tl.arange(0, BLOCK)
    return start, offset, offset < left_of(size, start, BLOCK)
