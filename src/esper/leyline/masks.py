"""Action masks. Heads are sampled in order, so a mask may depend on earlier choices.

Shape letters: E members, O operations, S slots, K blueprints; each of the other heads has its own:
Y styles, M tempos, T alpha targets, V alpha speeds, U alpha curves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from esper.leyline.actions import HEAD_CHOICES, SLOT_OPS, ActionHead, LifecycleOp
from esper.leyline.arrays import ArrayStruct, Bools
from esper.leyline.errors import EsperError

FIXED_MASK: Final[Mapping[ActionHead, str]] = {
    ActionHead.STYLE: "style_Y",
    ActionHead.TEMPO: "tempo_M",
    ActionHead.ALPHA_TARGET: "alpha_target_T",
    ActionHead.ALPHA_SPEED: "alpha_speed_V",
    ActionHead.ALPHA_CURVE: "alpha_curve_U",
}
"""Field of `ActionMasks` for each head whose choices are the same for all members, in order."""
_LETTER_OF = {ActionHead.OP: "O", **{head: name[-1] for head, name in FIXED_MASK.items()}}
_CHOICES = tuple((head, letter, len(HEAD_CHOICES[head])) for head, letter in _LETTER_OF.items())
_HAS_SLOT: Bools = np.array([op in SLOT_OPS for op in LifecycleOp])


@dataclass(frozen=True, slots=True, eq=False)
class ActionMasks(ArrayStruct):
    """True where a choice is allowed. A frozen head has exactly one True; an empty mask raises."""

    op_EO: Bools
    """Operations legal in at least one slot; WAIT always is."""
    slot_EOS: Bools
    """Slots in which the chosen operation is legal. The rows of WAIT, STOP and RESTART are
    ignored."""
    blueprint_ESK: Bools
    """Blueprints that fit the chosen slot within the member's caps."""
    style_Y: Bools
    tempo_M: Bools
    alpha_target_T: Bools
    alpha_speed_V: Bools
    alpha_curve_U: Bools

    def __post_init__(self) -> None:
        sizes = self.sizes()
        for head, letter, choices in _CHOICES:
            if sizes[letter] != choices:
                raise EsperError(
                    f"ActionMasks: {sizes[letter]} choices for {head.name}, "
                    f"there are {choices} ({', '.join(HEAD_CHOICES[head])})"
                )
        self._check_not_empty()

    def _check_not_empty(self) -> None:
        """Raise unless every reachable choice leaves at least one choice for each later head."""
        acts_E = self.op_EO.any(axis=1)
        if not acts_E.all():
            stuck = np.flatnonzero(~acts_E)[0]
            raise EsperError(f"empty mask: member {stuck} has no legal operation, not even WAIT")
        nowhere_EO = self.op_EO & _HAS_SLOT & ~self.slot_EOS.any(axis=2)
        if nowhere_EO.any():
            member, op = np.argwhere(nowhere_EO)[0]
            raise EsperError(f"empty mask: member {member}, {LifecycleOp(op).name} in no slot")
        barren_ES = np.asarray(~self.blueprint_ESK.any(axis=2))
        if barren_ES.any():
            self._check_grows(barren_ES)
        for name in FIXED_MASK.values():
            if not getattr(self, name).any():
                raise EsperError(f"empty mask: {name} allows nothing; freeze a head to one choice")

    def _check_grows(self, barren_ES: Bools) -> None:
        """Raise if a seed may grow in a slot that no blueprint may grow in."""
        for op in (LifecycleOp.GERMINATE, LifecycleOp.PLANT):
            grows_ES = self.slot_EOS[:, op] & self.op_EO[:, op, None]
            reached = np.argwhere(grows_ES & barren_ES)
            if reached.size:
                member, slot = reached[0]
                raise EsperError(
                    f"empty mask: no blueprint for slot {slot} of member {member}, where one may "
                    f"grow"
                )


def require_mask(reset_E: Bools, members: int) -> None:
    """Raise unless members to reset are given by a mask: numbers would pass for one."""
    found = np.asarray(reset_E)
    if found.shape != (members,) or found.dtype != np.bool_:
        raise EsperError(
            f"members to reset: {found.dtype} of shape {found.shape}, expected a bool mask of "
            f"shape ({members},)"
        )
