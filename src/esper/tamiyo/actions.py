"""Decoding of sampled head indices into actions, and the table of heads each operation uses.

Shape letters: E members, O operations, A action heads.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from esper.leyline.actions import HEADS_BY_OP, ActionHead, ActionSpec, LifecycleOp
from esper.leyline.arrays import Bools, Ints
from esper.leyline.errors import EsperError

HEAD_USED_OA: Final[Bools] = np.array(
    [[head in HEADS_BY_OP[op] for head in ActionHead] for op in LifecycleOp]
)
"""`HEADS_BY_OP` as a boolean table: True where the operation uses the head."""


def parse_sampled_action(heads_EA: Ints) -> ActionSpec:
    """Decode sampled head indices `[E, A]`, columns in `ActionHead` order.

    >>> parse_sampled_action(np.array([[4, 1, 0, 0, 0, 0, 1, 0]])).describe(0, ["r0c0", "r0c1"], [])
    'PRUNE r0c1 alpha_speed=3 alpha_curve=LINEAR'
    """
    if not np.issubdtype(heads_EA.dtype, np.integer):
        raise EsperError(f"sampled actions of dtype {heads_EA.dtype}: expected integers")
    return ActionSpec(*np.array(heads_EA.T, dtype=np.int64, order="C"))
