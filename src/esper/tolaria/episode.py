"""Histories of an episode: scores, losses, FLOPs, reward inputs and the episode outcome.

Row 0 of every history is the fresh host, row t + 1 is step t. The score of a step is that of the
validated state: before any rollback or action of that step.

Shape letters: T steps, E members, S slots.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from esper.kasmina.lifecycle.lifecycle import Lifecycle
from esper.kasmina.population import Population
from esper.leyline.actions import ActionOutcome, ActionSpec, LifecycleOp
from esper.leyline.arrays import Bools, Doubles, Ints, read_only
from esper.leyline.payloads import EpisodeOutcome
from esper.leyline.rewards import RewardInputs
from esper.leyline.signals import NO_BLUEPRINT, GovernorVerdicts, SlotReports, TrainingSignals
from esper.tasks.scoring import TrainingFlops, added, live_mac_share, score
from esper.tasks.spec import TaskSpec
from esper.tolaria.context_state import ContextState
from esper.tolaria.measurements import TrainMeasurements


class EpisodeTracker:
    """Tracks scores, losses and FLOPs of the current episode."""

    def __init__(
        self, spec: TaskSpec, population: Population, suffix_macs_S: Ints, context: ContextState
    ) -> None:
        """`population` must have run a forward pass, which determines the MACs."""
        probe = population.probe
        assert probe is not None  # the engine runs one first
        self.spec = spec
        self.context = context
        self._life = population.lifecycle
        self.host_params = population.network.host.parameters_per_member
        self.host_macs = probe.host_macs
        members = population.members
        self.flops = TrainingFlops(members, self.host_macs, suffix_macs_S, spec.episode_samples)
        shape = (spec.episode_length + 1, members)
        self.score_TE: Doubles = np.full(shape, np.nan)
        self.score_accuracy_TE: Doubles = np.full(shape, np.nan)
        """On `val_score`."""
        self.score_loss_TE: Doubles = np.full(shape, np.nan)
        self.accuracy_TE: Doubles = np.full(shape, np.nan)
        """On `val_control`."""
        self.loss_TE: Doubles = np.full(shape, np.nan)
        self.train_loss_TE: Doubles = np.full(shape, np.nan)
        self.added_params_TE: Doubles = np.full(shape, np.nan)
        """Parameters added by seeds with alpha > 0."""
        self._baseline_row_E: Ints = np.zeros(members, dtype=np.int64)
        """Row that the next step's reward is relative to."""

    def reset(self, slots: SlotReports) -> None:
        """Start an episode; call `record_step` with step -1 next."""
        self.flops.reset()
        histories: tuple[Doubles, ...]
        histories = (self.score_TE, self.score_accuracy_TE, self.score_loss_TE)
        histories += (self.accuracy_TE, self.loss_TE, self.train_loss_TE, self.added_params_TE)
        for history in histories:
            history.fill(np.nan)
        self._baseline_row_E.fill(0)
        self.restart(slots)

    def add_training_flops(self, slots: SlotReports) -> None:
        """Add the training FLOPs of a step with the given slots; not used with a compute clock."""
        samples = self.spec.batch_size * self.spec.batches_per_step
        stopped_E = self._life.stopped_E
        self.flops.add(samples, slots.stage_ES, slots.alpha_ES, slots.macs_ES, stopped_E)

    @property
    def flops_ratio_E(self) -> Doubles:
        """Training FLOPs relative to a training run of the host."""
        clock = self.context.clock
        return self.flops.ratio_E if clock is None else clock.runs_E

    def restart(self, slots: SlotReports) -> None:
        """Take slots planted in the plan phase as those of the fresh members."""
        self._baseline_slots = slots
        self._validated_slots = slots

    def with_idle_members(self, step: int, train: TrainMeasurements) -> TrainMeasurements:
        """Repeat the last train loss of members that trained on no batch of this step.

        Before their first batch, also after a restart, it is the validation loss of the member as
        the episode began.
        """
        idle_E = train.batches_E == 0
        if not idle_E.any():
            return train
        last_E = self.train_loss_TE[step]
        known_E = np.isfinite(last_E) & self._life.trained_E
        last_E = np.where(known_E, last_E, self.loss_TE[0])
        idle_ES = idle_E[:, None] & np.isnan(train.grad_norm_ES)
        return replace(
            train,
            loss_E=np.where(idle_E, last_E, train.loss_E),
            host_grad_norm_E=np.where(idle_E, 0.0, train.host_grad_norm_E),
            grad_norm_ES=np.where(idle_ES, 0.0, train.grad_norm_ES),
        )

    def record_step(
        self,
        step: int,
        slots: SlotReports,
        control: tuple[Doubles, Doubles],
        scored: tuple[Doubles, Doubles],
        train_loss_E: Doubles | None = None,
    ) -> Doubles:
        """Record (loss, accuracy) on `val_control` and `val_score`; returns the score `[E]`."""
        row = step + 1
        self._validated_slots = slots
        self.loss_TE[row], self.accuracy_TE[row] = control
        self.score_loss_TE[row], self.score_accuracy_TE[row] = scored
        if train_loss_E is not None:
            self.train_loss_TE[row] = train_loss_E
        self.added_params_TE[row] = added(slots.alpha_ES, slots.params_ES)
        score_E = score(
            scored[1],
            slots.alpha_ES,
            slots.params_ES,
            slots.macs_ES,
            self.host_params,
            self.host_macs,
            self.spec.score,
            self.flops_ratio_E,
            self.context.members.price_E,
        )
        stopped_E = self._life.stopped_E & (row > 1)
        for history in (self.score_accuracy_TE, self.score_loss_TE):  # as they were scored last
            history[row, stopped_E] = history[row - 1, stopped_E]
        self.score_TE[row] = np.where(stopped_E, self.score_TE[row - 1], score_E)
        return np.array(self.score_TE[row])

    def settle_stops(self, row: int, stopped_E: Bools) -> None:
        """Credit the compute that members who stop after this row will not use."""
        if self.context.clock is None and stopped_E.any():
            share = 1.0 - row / self.spec.episode_length
            self.flops.save(stopped_E, share)
            price_E = self.context.members.price_E
            self.score_TE[row, stopped_E] += (self.spec.score.c_f * price_E * share)[stopped_E]

    def plan_inputs(
        self,
        signals: TrainingSignals,
        actions: ActionSpec,
        outcome: ActionOutcome,
        score_before_E: Doubles,
        score_E: Doubles,
    ) -> RewardInputs:
        """Return the reward inputs of a decision of the plan phase."""
        members, slots = len(score_E), signals.slots
        nan_E = np.full(members, np.nan)
        nobody_E = np.zeros(members, dtype=np.bool_)
        inputs = RewardInputs(
            step=0,
            score_E=score_E.copy(),
            score_before_E=score_before_E,
            accuracy_E=self.accuracy_TE[0].copy(),
            accuracy_before_E=self.accuracy_TE[0].copy(),
            loss_E=self.loss_TE[0].copy(),
            loss_before_E=self.loss_TE[0].copy(),
            added_params_E=added(slots.alpha_ES, slots.params_ES),
            added_macs_E=added(slots.alpha_ES, slots.macs_ES),
            live_mac_share_E=np.zeros(members),
            stage_before_ES=slots.stage_ES,
            steps_in_stage_before_ES=slots.steps_in_stage_ES,
            contribution_before_ES=slots.contribution_ES.astype(np.float64),
            rolled_back_E=nobody_E,
            snapshot_score_E=nan_E,
            snapshot_accuracy_E=nan_E,
            snapshot_loss_E=nan_E,
            snapshot_params_E=nan_E,
            truncated_E=nobody_E,
            planning=True,
            **self._observed(signals, actions, outcome),
        )
        return read_only(inputs)

    def _observed(
        self, signals: TrainingSignals, actions: ActionSpec, outcome: ActionOutcome
    ) -> dict[str, Any]:
        """What reward inputs take over from the observation and the action."""
        slots = signals.slots
        return {
            "round_index": signals.round_index,
            "episode_length": signals.episode_length,
            "host_params": self.host_params,
            "host_macs": self.host_macs,
            "stage_ES": slots.stage_ES,
            "steps_in_stage_ES": slots.steps_in_stage_ES,
            "alpha_ES": slots.alpha_ES,
            "contribution_ES": slots.contribution_ES.astype(np.float64),
            "contribution_se_ES": slots.contribution_se_ES.astype(np.float64),
            "actions": actions,
            "outcome": outcome,
        }

    def reward_inputs(
        self,
        signals: TrainingSignals,
        actions: ActionSpec,
        outcome: ActionOutcome,
        governor: GovernorVerdicts,
        truncated: bool,
    ) -> RewardInputs:
        """Return the reward inputs of this step, and make it the baseline of the next one."""
        row, step = signals.step + 1, signals.step
        now, before, validated = signals.slots, self._baseline_slots, self._validated_slots
        member_E = np.arange(len(self._baseline_row_E))
        start = (self._baseline_row_E, member_E)
        members = len(member_E)
        inputs = RewardInputs(
            step=step,
            score_E=self.score_TE[row].copy(),
            score_before_E=self.score_TE[start],
            accuracy_E=self.accuracy_TE[row].copy(),
            accuracy_before_E=self.accuracy_TE[start],
            loss_E=self.loss_TE[row].copy(),
            loss_before_E=self.loss_TE[start],
            added_params_E=self.added_params_TE[row].copy(),
            added_macs_E=added(validated.alpha_ES, validated.macs_ES),
            live_mac_share_E=live_mac_share(validated.stage_ES, validated.macs_ES, self.host_macs),
            stage_before_ES=before.stage_ES,
            steps_in_stage_before_ES=before.steps_in_stage_ES,
            contribution_before_ES=before.contribution_ES.astype(np.float64),
            rolled_back_E=governor.rolled_back_E,
            truncated_E=np.full(members, truncated),
            **self._observed(signals, actions, outcome),
            **self._snapshot_values(governor),
        )
        restored_E = np.where(governor.rolled_back_E, governor.snapshot_step_E + 1, row)
        self._baseline_row_E, self._baseline_slots = restored_E.astype(np.int64), now
        return read_only(inputs)

    def _snapshot_values(self, governor: GovernorVerdicts) -> dict[str, Any]:
        """Metrics at the snapshot of rolled-back members; NaN for the others.

        The score is the governor's, which uses chance instead of NaN for a fresh host.
        """
        rolled_back_E = governor.rolled_back_E
        at = (
            np.where(rolled_back_E, governor.snapshot_step_E + 1, 0),
            np.arange(len(rolled_back_E)),
        )
        found = {
            "snapshot_score_E": governor.snapshot_score_E,
            "snapshot_accuracy_E": self.accuracy_TE[at],
            "snapshot_loss_E": self.loss_TE[at],
            "snapshot_params_E": self.added_params_TE[at],
        }
        return {name: np.where(rolled_back_E, values_E, np.nan) for name, values_E in found.items()}

    def outcome(
        self, rewards_E: Doubles, successes_EO: Ints, rollbacks_E: Ints, life: Lifecycle
    ) -> EpisodeOutcome:
        """Outcome of the episode at the last validation, or at the snapshot of a member that was
        rolled back there."""
        slots = self._baseline_slots
        at = (self._baseline_row_E, np.arange(len(rewards_E)))
        exported_ES = np.where(slots.alpha_ES > 0, slots.blueprint_ES, NO_BLUEPRINT)
        return EpisodeOutcome(
            member_E=np.arange(len(rewards_E), dtype=np.int64),
            episode_return_E=rewards_E.copy(),
            score_E=self.score_TE[at],
            accuracy_E=self.score_accuracy_TE[at],
            loss_E=self.score_loss_TE[at],
            added_params_E=added(slots.alpha_ES, slots.params_ES).astype(np.int64),
            added_macs_E=added(slots.alpha_ES, slots.macs_ES).astype(np.int64),
            flops_ratio_E=self.flops_ratio_E,
            germinated_E=successes_EO[:, LifecycleOp.GERMINATE].copy(),
            fossilized_E=successes_EO[:, LifecycleOp.FOSSILIZE].copy(),
            pruned_E=(life.births_ES - life.occupied()).sum(axis=1),
            rollbacks_E=rollbacks_E.copy(),
            blueprint_ES=exported_ES,
            restarts_E=life.restarts_E.copy(),
        )
