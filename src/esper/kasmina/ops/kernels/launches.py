"""Launches of our kernels over many rows; rows are the second or third axis of a grid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MAX_ROWS: Final = 65_535
"""Maximum size of the second and third axis of a CUDA grid; the first has 2**31 - 1."""


def row_launches(rows: int) -> Iterator[tuple[int, int]]:
    """Yield first row and number of rows of each launch: one, unless a grid is too small."""
    for first in range(0, rows, MAX_ROWS):
        yield first, min(MAX_ROWS, rows - first)
