"""Fixed schedule policy: germinates given blueprints in given slots at given steps.

Shape letters: E members, S slots, N entries of the schedule.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esper.leyline.actions import ActionHead, ActionSpec, LifecycleOp
from esper.leyline.arrays import Bools, Ints
from esper.leyline.errors import EsperError
from esper.leyline.masks import ActionMasks, require_mask
from esper.leyline.protocols import RewardProtocol
from esper.leyline.records import PolicyDecision
from esper.leyline.signals import TrainingSignals
from esper.tamiyo.scripted import (
    FULL_ALPHA,
    ScriptedPolicy,
    blend_heads,
    build_actions,
    cannot_grow,
    first_applicable,
    held_at_least,
    index_of,
    legal_slots,
)


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """One seed to germinate."""

    step: int
    """Step of the episode at which to germinate."""
    slot: str
    """Slot id."""
    blueprint: str
    """Blueprint name."""

    def __post_init__(self) -> None:
        if self.step < 0:
            raise EsperError(
                f"schedule entry for slot {self.slot}: step {self.step} must be 0 or more"
            )


@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    """Settings of `FixedSchedule`."""

    entries: tuple[ScheduleEntry, ...]
    """Seeds to germinate; entries due at the same step run one per step, in this order."""
    probation_steps: int = 5
    """Steps in HOLDING after which a seed that cannot fossilise is pruned."""

    def __post_init__(self) -> None:
        if self.probation_steps < 0:
            raise EsperError(f"probation_steps={self.probation_steps}: must be 0 or more")


class FixedSchedule(ScriptedPolicy):
    """Germinates its entries, advances and fossilises when legal, prunes after probation.

    One action per member and step, in order of priority: germinate a due entry, fossilise, prune,
    advance. An entry that cannot run yet (slot not dormant, another entry first) stays due. The
    policy state `done_EN` marks the entries each member has germinated; it is cleared on reset.
    """

    def __init__(self, config: ScheduleConfig, reward: RewardProtocol | None = None) -> None:
        super().__init__(reward)
        self.config = config
        self.entries = tuple(sorted(config.entries, key=lambda entry: entry.step))

    def initial_state(self, members: int) -> Bools:
        """Return an all-False `done_EN`."""
        return np.zeros((members, len(self.entries)), dtype=np.bool_)

    def reset_state(self, policy_state: Bools, reset_E: Bools) -> Bools:
        """Mark all entries of the reset members as not germinated."""
        require_mask(reset_E, len(policy_state))
        return np.asarray(policy_state & ~reset_E[:, None])

    def act(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: Bools
    ) -> tuple[PolicyDecision, Bools]:
        """Return the scheduled action of each member, and the updated `done_EN`."""
        places = self._places(obs, masks)
        if cannot_grow(masks):
            return PolicyDecision.deterministic(ActionSpec.wait(len(policy_state))), policy_state
        entry_E, due_ES = self._due(obs, masks, policy_state, places)
        legal_fossilize_ES = legal_slots(masks, LifecycleOp.FOSSILIZE)
        failed_ES = held_at_least(obs, self.config.probation_steps) & ~legal_fossilize_ES
        op_E, slot_E = first_applicable(
            [
                (LifecycleOp.GERMINATE, due_ES),
                (LifecycleOp.FOSSILIZE, legal_fossilize_ES),
                (LifecycleOp.PRUNE, failed_ES & legal_slots(masks, LifecycleOp.PRUNE)),
                (LifecycleOp.ADVANCE, legal_slots(masks, LifecycleOp.ADVANCE)),
            ]
        )
        started_E = op_E == LifecycleOp.GERMINATE
        started_EN = started_E[:, None] & (entry_E[:, None] == np.arange(len(self.entries)))
        heads = blend_heads(masks)
        if self.entries:
            if heads[ActionHead.ALPHA_TARGET] != FULL_ALPHA:
                raise EsperError(
                    "a schedule blends its seeds in full: alpha target 1.0 is frozen to another"
                )
            heads[ActionHead.BLUEPRINT] = places[entry_E, 1]
        actions = build_actions(op_E, slot_E, heads)
        return PolicyDecision.deterministic(actions), np.asarray(policy_state | started_EN)

    def _places(self, obs: TrainingSignals, masks: ActionMasks) -> Ints:
        """Resolve names to (slot, blueprint) indices `[N, 2]`; raises if unknown or not fitting."""
        slots, capped = obs.slots, np.isfinite(obs.context.params_cap_E).any()
        places = [
            (
                index_of("slot", entry.slot, slots.slot_ids, "of the schedule"),
                index_of("blueprint", entry.blueprint, slots.blueprints, "of the schedule"),
            )
            for entry in self.entries
        ]
        for entry, (slot, kind) in zip(self.entries, places, strict=True):
            if not masks.blueprint_ESK[:, slot, kind].any() and not capped:
                raise EsperError(
                    f"schedule: blueprint {entry.blueprint} is not allowed in slot {entry.slot}"
                )
        return np.array(places, dtype=np.int64).reshape(-1, 2)

    def _due(
        self, obs: TrainingSignals, masks: ActionMasks, done_EN: Bools, places: Ints
    ) -> tuple[Ints, Bools]:
        """Return the first entry `[E]` each member can germinate, and its slot mask `[E, S]`."""
        legal_ES = legal_slots(masks, LifecycleOp.GERMINATE)
        members, slots = legal_ES.shape
        if not self.entries:
            return np.zeros(members, dtype=np.int64), np.zeros_like(legal_ES)
        slot_N = places[:, 0]
        reached_N = np.array([entry.step <= obs.step for entry in self.entries])
        fits_EN = masks.blueprint_ESK[:, slot_N, places[:, 1]]
        ready_EN = reached_N & ~done_EN & legal_ES[:, slot_N] & fits_EN
        entry_E = ready_EN.argmax(axis=1)
        target_ES = slot_N[entry_E][:, None] == np.arange(slots)
        return entry_E, np.asarray(target_ES & ready_EN.any(axis=1, keepdims=True))
