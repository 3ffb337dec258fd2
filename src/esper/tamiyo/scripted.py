"""Base class and helpers of scripted policies, which do not learn.

Shape letters: E members, S slots, O operations, C choices of one head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from esper.leyline.actions import (
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    ActionHead,
    ActionSpec,
    AlphaCurve,
    BlendStyle,
    LifecycleOp,
)
from esper.leyline.arrays import Bools, Ints
from esper.leyline.errors import unknown_name
from esper.leyline.masks import FIXED_MASK, ActionMasks
from esper.leyline.protocols import RewardProtocol
from esper.leyline.records import Rollout
from esper.leyline.rewards import RewardComponentsTelemetry, RewardInputs
from esper.leyline.signals import TrainingSignals
from esper.leyline.stages import SeedStage
from esper.tamiyo.actions import HEAD_USED_OA

FULL_ALPHA: Final = ALPHA_TARGETS.index(1.0)
"""Index of alpha target 1.0: a contribution is only comparable at full alpha."""


class ScriptedPolicy:
    """A policy that does not learn; `reward`, if given, is only reported."""

    def __init__(self, reward: RewardProtocol | None = None) -> None:
        self.reward = reward

    def store(self, inputs: RewardInputs, terminal_E: Bools) -> RewardComponentsTelemetry:
        """Return the reward components of this step; empty without a reward."""
        if self.reward is None:
            return RewardComponentsTelemetry.of({}, inputs.members)
        return self.reward(inputs)[1]

    def update(self, rollout: Rollout[object]) -> None:
        """No-op."""


def fixed_mask(masks: ActionMasks, head: ActionHead) -> Bools:
    """Mask `[C]` of a head whose choices are the same for all members."""
    mask: Bools = getattr(masks, FIXED_MASK[head])
    return mask


def nearest_allowed(masks: ActionMasks, head: ActionHead, index: int) -> int:
    """Return `index` if the head's mask allows it, else the nearest allowed index."""
    allowed = np.flatnonzero(fixed_mask(masks, head))
    return int(allowed[np.abs(allowed - index).argmin()])


def cannot_grow(masks: ActionMasks) -> bool:
    """Whether the host has no slots or no blueprints."""
    return masks.blueprint_ESK.size == 0


def legal_slots(masks: ActionMasks, op: LifecycleOp) -> Bools:
    """`[E, S]`: slots in which an operation is legal."""
    return np.asarray(masks.slot_EOS[:, op] & masks.op_EO[:, op, None])


def legal_members(masks: ActionMasks, actions: ActionSpec) -> Bools:
    """`[E]`: members whose action the masks allow, in every head that it uses."""
    member_E, op_E, slot_E = np.arange(actions.members), actions.op, actions.slot
    allowed = {head: fixed_mask(masks, head)[actions.of(head)] for head in FIXED_MASK}
    if not cannot_grow(masks):
        allowed[ActionHead.SLOT] = masks.slot_EOS[member_E, op_E, slot_E]
        allowed[ActionHead.BLUEPRINT] = masks.blueprint_ESK[member_E, slot_E, actions.blueprint]
    legal_E = masks.op_EO[member_E, op_E].copy()
    for head, allowed_E in allowed.items():
        legal_E &= allowed_E | ~HEAD_USED_OA[op_E, head]
    return legal_E


def first_applicable(candidates: Sequence[tuple[LifecycleOp, Bools]]) -> tuple[Ints, Ints]:
    """Pick one (operation, slot) per member, `[E]` each: the first candidate with a slot.

    `candidates`: operations with the slots `[E, S]` they apply to, in order of priority. Of several
    slots the first is taken. Members without a candidate WAIT.

    >>> prune, advance = np.array([[False, False], [False, True]]), np.array([[True, True]] * 2)
    >>> first_applicable([(LifecycleOp.PRUNE, prune), (LifecycleOp.ADVANCE, advance)])
    (array([2, 4]), array([0, 1]))
    """
    members = len(candidates[0][1])
    op_E = np.full(members, LifecycleOp.WAIT, dtype=np.int64)
    slot_E = np.zeros(members, dtype=np.int64)
    for op, wanted_ES in reversed(candidates):
        wanted_E = wanted_ES.any(axis=1)
        op_E = np.where(wanted_E, int(op), op_E)
        slot_E = np.where(wanted_E, wanted_ES.argmax(axis=1), slot_E)
    return op_E, slot_E


def build_actions(op_E: Ints, slot_E: Ints, heads: Mapping[ActionHead, int | Ints]) -> ActionSpec:
    """Build actions; `heads` holds one index for all members or one each, and defaults to 0."""
    chosen = {ActionHead.OP: op_E, ActionHead.SLOT: slot_E, **heads}
    columns = (np.asarray(chosen.get(head, 0), dtype=np.int64) for head in ActionHead)
    return ActionSpec(*(np.broadcast_to(column, op_E.shape).copy() for column in columns))


def blend_heads(
    masks: ActionMasks, prune_speed: int = ALPHA_SPEEDS[1]
) -> dict[ActionHead, int | Ints]:
    """Indices of the heads that say how seeds blend, to full alpha; frozen heads win."""
    preferred = {
        ActionHead.STYLE: int(BlendStyle.ADD),
        ActionHead.TEMPO: 0,
        ActionHead.ALPHA_TARGET: FULL_ALPHA,
        ActionHead.ALPHA_SPEED: ALPHA_SPEEDS.index(prune_speed),
        ActionHead.ALPHA_CURVE: int(AlphaCurve.LINEAR),
    }
    return {head: nearest_allowed(masks, head, index) for head, index in preferred.items()}


def held_at_least(obs: TrainingSignals, steps: int) -> Bools:
    """`[E, S]`: seeds HOLDING for at least `steps`, with a contribution measured at full alpha.

    A contribution measured at a lower alpha says nothing about the seed at full alpha.
    """
    slots = obs.slots
    held_ES = (slots.stage_ES == SeedStage.HOLDING) & (slots.steps_in_stage_ES >= steps)
    age_ES = obs.contribution_age_ES
    return np.asarray(held_ES & (age_ES >= 0) & (age_ES <= slots.steps_in_stage_ES))


def index_of(kind: str, name: str, names: Sequence[str], where: str) -> int:
    """Return the index of `name`; raises with the nearest valid name if it is unknown."""
    if name not in names:
        raise unknown_name(kind, name, names, where)
    return list(names).index(name)
