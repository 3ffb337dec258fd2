"""`RoundTotals`: sums over the steps of a round.

A fixed number of array operations per step, independent of E; records are neither kept nor changed.
Shape letters: E members, T steps, S slots, O operations, A heads, Z stages, P reward parts, F
phases.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esper.leyline.actions import (
    NO_SLOT,
    ActionHead,
    ActionOutcome,
    ActionSpec,
    LifecycleOp,
    op_choices,
)
from esper.leyline.arrays import ArrayStruct, Bools, Doubles, Ints
from esper.leyline.masks import FIXED_MASK, ActionMasks
from esper.leyline.payloads import EpisodeCurve, StepPhase
from esper.leyline.records import PlanRecord, PolicyDecision, StepRecord
from esper.leyline.rewards import RewardComponentsTelemetry
from esper.leyline.stages import SeedStage
from esper.leyline.statistics import t_interval
from esper.tamiyo.actions import HEAD_USED_OA

_O, _A, _Z, _F = len(LifecycleOp), len(ActionHead), len(SeedStage), len(StepPhase)


@dataclass(frozen=True, slots=True, eq=False)
class MaskStats(ArrayStruct):
    """Mask statistics per head, summed over the steps at which the head was used."""

    steps_A: Ints
    """Member-steps at which the head was used."""
    masked_A: Doubles
    """Sum of the fraction of its choices that were masked."""
    forced_A: Ints
    """Of these member-steps, those with a single legal choice."""

    @classmethod
    def none(cls) -> MaskStats:
        """All zeros."""
        return cls(np.zeros(_A, np.int64), np.zeros(_A), np.zeros(_A, np.int64))

    @classmethod
    def of(cls, masks: ActionMasks, actions: ActionSpec, restarts: bool = False) -> MaskStats:
        """Statistics of one step; `restarts`: RESTART is among the choices."""
        counts_EA = HEAD_USED_OA[actions.op]
        left_EA, size_A = _choices_left(masks, actions, counts_EA, op_choices(restarts))
        return cls(
            steps_A=counts_EA.sum(axis=0),
            masked_A=((1.0 - left_EA / size_A) * counts_EA).sum(axis=0),
            forced_A=((left_EA == 1) & counts_EA).sum(axis=0),
        )

    def __add__(self, other: MaskStats) -> MaskStats:
        return MaskStats(
            self.steps_A + other.steps_A,
            self.masked_A + other.masked_A,
            self.forced_A + other.forced_A,
        )


def _choices_left(
    masks: ActionMasks, actions: ActionSpec, counts_EA: Bools, ops: int
) -> tuple[Ints, Ints]:
    """Legal choices `[E, A]` of each head given the choices before it, and its total choices.

    `ops`: choices of the OP head.
    """
    members = np.arange(actions.members)
    # The slot index is arbitrary for operations without a slot.
    slot_E = np.where(counts_EA[:, ActionHead.SLOT], actions.slot, 0)
    of_slots_ES = masks.slot_EOS[members, actions.op]
    of_blueprints_EK = masks.blueprint_ESK[members, slot_E]
    left_EA = np.empty((actions.members, _A), dtype=np.int64)
    left_EA[:, ActionHead.OP] = masks.op_EO[:, :ops].sum(axis=1)
    left_EA[:, ActionHead.SLOT] = of_slots_ES.sum(axis=1)
    left_EA[:, ActionHead.BLUEPRINT] = of_blueprints_EK.sum(axis=1)
    same_for_all = [getattr(masks, name) for name in FIXED_MASK.values()]
    left_EA[:, ActionHead.STYLE :] = [np.count_nonzero(mask) for mask in same_for_all]
    sizes = [ops, *masks.blueprint_ESK.shape[1:], *map(len, same_for_all)]
    return left_EA, np.maximum(np.array(sizes, dtype=np.int64), 1)


class RoundTotals:
    """Running sums of one round.

    totals = RoundTotals(members)
    totals.add_plan(record)  # at each decision of the plan phase
    totals.add(record)  # at each step
    """

    def __init__(self, members: int) -> None:
        self.members = members
        self.steps = 0
        self.decisions = 0
        """Steps and decisions of the plan phase."""
        self.chosen_O: Ints = np.zeros(_O, dtype=np.int64)
        self.executed_O: Ints = np.zeros(_O, dtype=np.int64)
        self.legal_O: Ints = np.zeros(_O, dtype=np.int64)
        self.chosen_OZ: Ints = np.zeros((_O, _Z), dtype=np.int64)
        self.masks = MaskStats.none()
        self.reward_E: Doubles = np.zeros(members)
        self.slot_chosen_S: Ints = np.zeros(0, dtype=np.int64)
        """Operations that targeted each slot; like the next two, sized by the first record."""
        self.slot_executed_S: Ints = np.zeros(0, dtype=np.int64)
        self.slot_reward_S: Doubles = np.zeros(0)
        self.rows = 0
        self.seconds_F: Doubles = np.zeros(_F)
        self._probability_O: Doubles = np.zeros(_O)
        self._parts: dict[str, Doubles] = {}
        self._step_seconds: list[float] = []
        self._curve: list[tuple[int, Doubles]] = []

    def add(self, record: StepRecord) -> None:
        """Add a step."""
        self.steps += 1
        self.rows += record.rows
        self._add_decision(record, record.result.outcome)
        for spent in record.phases:
            self.seconds_F[spent.phase] += spent.seconds
        if record.phases:
            self._step_seconds.append(sum(spent.seconds for spent in record.phases))
        seen = record.signals
        measured = (seen.val_accuracy_E, record.reward_inputs.score_E, seen.train_accuracy_E,
                    seen.context.spent_E)  # fmt: skip
        self._curve.append((seen.step, np.stack(measured, dtype=np.float64)))

    def add_plan(self, record: PlanRecord) -> None:
        """Add a decision of the plan phase."""
        self._add_decision(record, record.outcome)

    def _add_decision(self, record: StepRecord | PlanRecord, outcome: ActionOutcome) -> None:
        masks, rewards = record.masks, record.rewards
        self.decisions += 1
        self._add_actions(record.decision, outcome, masks)
        self._add_slots(outcome, masks.slot_EOS.shape[2], rewards.total)
        restarts = record.signals.context.restarts
        self.masks += MaskStats.of(masks, record.decision.actions, restarts)
        self._add_rewards(rewards)

    def _add_actions(
        self, decision: PolicyDecision, outcome: ActionOutcome, masks: ActionMasks
    ) -> None:
        op_E = decision.actions.op
        self.chosen_O += np.bincount(op_E, minlength=_O)
        self.executed_O += np.bincount(op_E[outcome.executed], minlength=_O)
        self.legal_O += masks.op_EO.sum(axis=0)
        self._probability_O += decision.op_probability_EO.sum(axis=0, dtype=np.float64)
        placed_E = outcome.stage_before >= 0
        cell_N = op_E[placed_E] * _Z + outcome.stage_before[placed_E]
        self.chosen_OZ += np.bincount(cell_N, minlength=_O * _Z).reshape(_O, _Z)

    def _add_slots(self, outcome: ActionOutcome, slots: int, reward_E: Doubles) -> None:
        if len(self.slot_chosen_S) != slots:
            self.slot_chosen_S = np.zeros(slots, dtype=np.int64)
            self.slot_executed_S = np.zeros(slots, dtype=np.int64)
            self.slot_reward_S = np.zeros(slots)
        placed_E = outcome.target_slot != NO_SLOT
        slot_N = outcome.target_slot[placed_E]
        self.slot_chosen_S += np.bincount(slot_N, minlength=slots)
        self.slot_executed_S += np.bincount(slot_N[outcome.executed[placed_E]], minlength=slots)
        self.slot_reward_S += np.bincount(slot_N, weights=reward_E[placed_E], minlength=slots)

    def _add_rewards(self, rewards: RewardComponentsTelemetry) -> None:
        # By name, because some components occur at some steps only (episode end, rollback).
        for name, paid_E in zip(rewards.names, rewards.value_PE, strict=True):
            self._parts[name] = self._parts.get(name, 0.0) + paid_E
        self.reward_E += rewards.total

    @property
    def member_steps(self) -> int:
        """Steps of all members."""
        return self.steps * self.members

    @property
    def probability_O(self) -> Doubles:
        """Mean policy probability of each operation; NaN before the first decision."""
        return self._probability_O / (self.decisions * self.members or np.nan)

    @property
    def rows_per_member(self) -> float:
        """Mean computed rows per member and step; NaN before the first step."""
        return self.rows / (self.member_steps or np.nan)

    @property
    def rewards(self) -> RewardComponentsTelemetry:
        """Sum of each reward component per member."""
        return RewardComponentsTelemetry.of(self._parts, self.members)

    @property
    def curve(self) -> EpisodeCurve:
        """The round step by step."""
        measured_ETX = np.array([found_XE for _, found_XE in self._curve]).transpose(2, 0, 1)
        mean_TX, low_TX, high_TX = t_interval(measured_ETX)
        return EpisodeCurve(
            at_step_T=np.array([step for step, _ in self._curve], dtype=np.int64),
            accuracy_T=mean_TX[:, 0].copy(),
            accuracy_low_T=low_TX[:, 0].copy(),
            accuracy_high_T=high_TX[:, 0].copy(),
            score_T=mean_TX[:, 1].copy(),
            train_accuracy_T=mean_TX[:, 2].copy(),
            spent_T=mean_TX[:, 3].copy(),
        )

    def step_seconds(self, percent: float) -> float:
        """Percentile of the measured step time; NaN if no phase was measured."""
        if not self._step_seconds:
            return np.nan
        return float(np.percentile(self._step_seconds, percent))
