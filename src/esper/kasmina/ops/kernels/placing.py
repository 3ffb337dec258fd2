"""Where the steps of a seed read and write: in memory of their own, or in rows of an activation.

Shape letters: G rows of one group.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from torch import Tensor

from esper.kasmina.ops.kernels.layout import skipping

IN_PLACE: Final = 2
"""SKIPS of a kernel (`grids.is_padding`) that works on rows of another tensor."""


class Placement(NamedTuple):
    """Rows of an activation that a step reads or changes in place."""

    rows: Tensor
    """`[G]`"""
    alpha: Tensor
    """`[G]`; an entry with alpha 0 is unused and touches no row."""
    takes: bool
    """The step reads these rows; backward adds the gradient of its input to them."""
    adds: bool
    """Alpha times its output is added to them; backward reads its gradient there, times alpha."""


def placed(count: int, like: Tensor, place: Placement | None) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return arguments of a kernel: rows, alpha, which entries are computed, and SKIPS; without a
    placement the first two are any tensor."""
    if place is not None:
        return place.rows, place.alpha, place.alpha, IN_PLACE
    return like, like, *skipping(count, like)
