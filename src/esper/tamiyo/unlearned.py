"""What policies that do not learn share: paying their reward, and picking one action per member.

Shape letters: E members, S slots, O operations, C choices of one head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from esper.leyline.actions import ALPHA_TARGETS, ActionHead, ActionSpec, LifecycleOp
from esper.leyline.arrays import Bools, Ints
from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.masks import ActionMasks
from esper.leyline.protocols import RewardProtocol
from esper.leyline.records import Rollout
from esper.leyline.rewards import RewardComponentsTelemetry, RewardInputs
from esper.leyline.signals import TrainingSignals
from esper.leyline.stages import SeedStage

FULL_ALPHA: Final = ALPHA_TARGETS.index(1.0)
"""Seeds are blended in fully: only then can they be judged."""

FIXED_MASK: Final[Mapping[ActionHead, str]] = {
    ActionHead.STYLE: "style_Y",
    ActionHead.TEMPO: "tempo_M",
    ActionHead.ALPHA_TARGET: "alpha_target_T",
    ActionHead.ALPHA_SPEED: "alpha_speed_V",
    ActionHead.ALPHA_CURVE: "alpha_curve_U",
}
"""Heads whose choices are the same for all members, and the mask of each."""


class UnlearnedPolicy:
    """A policy with nothing to learn; a reward, if given, only reports what it would pay."""

    def __init__(self, reward: RewardProtocol | None = None) -> None:
        self.reward = reward

    def store(self, inputs: RewardInputs, terminal_E: Bools) -> RewardComponentsTelemetry:
        """What the reward pays for this step, by part; no parts without a reward."""
        if self.reward is None:
            return RewardComponentsTelemetry.of({}, inputs.members)
        return self.reward(inputs)[1]

    def update(self, rollout: Rollout[object]) -> None:
        """Nothing is learnt."""


def fixed_mask(masks: ActionMasks, head: ActionHead) -> Bools:
    """The mask `[C]` of a head whose choices are the same for all members."""
    mask: Bools = getattr(masks, FIXED_MASK[head])
    return mask


def allowed_near(masks: ActionMasks, head: ActionHead, index: int) -> int:
    """`index` where the head may choose it, else the nearest choice that is left to it."""
    allowed = np.flatnonzero(fixed_mask(masks, head))
    return int(allowed[np.abs(allowed - index).argmin()])


def barren(masks: ActionMasks) -> bool:
    """Nothing can ever grow: the host has no slots, or there are no blueprints."""
    return masks.blueprint_SK.size == 0


def may(masks: ActionMasks, op: LifecycleOp) -> Bools:
    """`[E, S]`: where an operation may be chosen."""
    return np.asarray(masks.slot_EOS[:, op] & masks.op_EO[:, op, None])


def first_wish(wishes: Sequence[tuple[LifecycleOp, Bools]]) -> tuple[Ints, Ints]:
    """One (operation, slot) for each member, `[E]` each: the first wish that has a slot, its first.

    `wishes` are operations with the slots `[E, S]` they are wanted in, most urgent first. Members
    with no wish wait.

    >>> prune, advance = np.array([[False, False], [False, True]]), np.array([[True, True]] * 2)
    >>> first_wish([(LifecycleOp.PRUNE, prune), (LifecycleOp.ADVANCE, advance)])
    (array([2, 4]), array([0, 1]))
    """
    members = len(wishes[0][1])
    op_E = np.full(members, LifecycleOp.WAIT, dtype=np.int64)
    slot_E = np.zeros(members, dtype=np.int64)
    for op, wanted_ES in reversed(wishes):
        wanted_E = wanted_ES.any(axis=1)
        op_E = np.where(wanted_E, int(op), op_E)
        slot_E = np.where(wanted_E, wanted_ES.argmax(axis=1), slot_E)
    return op_E, slot_E


def action_of(op_E: Ints, slot_E: Ints, heads: Mapping[ActionHead, int | Ints]) -> ActionSpec:
    """The action with these later heads, one index for all members or one each; 0 elsewhere."""
    chosen = {ActionHead.OP: op_E, ActionHead.SLOT: slot_E, **heads}
    columns = (np.asarray(chosen.get(head, 0), dtype=np.int64) for head in ActionHead)
    return ActionSpec(*(np.broadcast_to(column, op_E.shape).copy() for column in columns))


def held_for(obs: TrainingSignals, steps: int) -> Bools:
    """`[E, S]`: on probation for `steps` or more, and measured since it is blended in fully.

    What was measured at a lower alpha, or not at all, is no ground to judge a seed.
    """
    slots = obs.slots
    held_ES = (slots.stage_ES == SeedStage.HOLDING) & (slots.steps_in_stage_ES >= steps)
    age_ES = obs.contribution_age_ES
    return np.asarray(held_ES & (age_ES >= 0) & (age_ES <= slots.steps_in_stage_ES))


def index_of(kind: str, name: str, names: Sequence[str], where: str) -> int:
    """The index of a name; an unknown one is refused with the nearest valid name."""
    if name not in names:
        raise unknown_name(kind, name, names, where)
    return list(names).index(name)


def require_one_of(name: str, value: int, valid: Sequence[int], where: str) -> None:
    """Refuse a value that is not one of a head's choices."""
    if value not in valid:
        listed = ", ".join(str(choice) for choice in valid)
        raise EsperError(f"{where}: {name} {value}, choose from {listed}")


def require_mask(reset_E: Bools, members: int) -> None:
    """Refuse anything but a mask of the members of a policy's state."""
    found = np.asarray(reset_E)
    if found.shape != (members,) or found.dtype != np.bool_:
        raise EsperError(
            f"reset_state: {found.dtype} of shape {found.shape}, "
            f"expected a mask of {members} members"
        )
