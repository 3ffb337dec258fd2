"""`TelemetryListener`: turns engine and trainer callbacks into telemetry events.

It never changes the records it reads, and builds an event only if the hub records it. `hub.level`
is the current level: after every update the round is checked for anomalies, and one raises the
level for some rounds. Of the config only `step_events` is used besides. Round totals are kept only
if some event records them at the start of the round, so a level raised later emits no partial sums.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch

from esper.device.nvml import gpu_utilization
from esper.leyline.actions import ActionOutcome
from esper.leyline.payloads import (
    EpisodeOutcome,
    PhaseTime,
    PPOUpdateMetrics,
    RunFinished,
    RunStarted,
    RunStatus,
    SlotPayload,
    StepPhase,
)
from esper.leyline.protocols import EngineListener, PlanListener
from esper.leyline.records import BatchSummary, PlanRecord, Rollout, StepRecord
from esper.leyline.signals import CounterfactualGap
from esper.leyline.stages import OCCUPIED_STAGES, SeedStage
from esper.leyline.telemetry import (
    TelemetryConfig,
    TelemetryEvent,
    TelemetryEventType,
    TelemetryLevel,
)
from esper.nissa.hub import TelemetryHub
from esper.simic.telemetry import emitters
from esper.simic.telemetry.anomaly import (
    AnomalyConfig,
    EscalationClock,
    detect_anomalies,
    emit_anomaly_diagnostics,
)
from esper.simic.telemetry.gradients import NetworkHealth
from esper.simic.telemetry.round_totals import MaskStats, RoundTotals
from esper.tasks.spec import OptimSettings
from esper.tolaria.device_info import gpu_memory

_Kind = TelemetryEventType

ROUND_TOTAL_EVENTS: Final = frozenset(
    {
        _Kind.LAST_ACTION,
        _Kind.ACTION_DISTRIBUTION,
        _Kind.EPISODE_CURVE,
        _Kind.MASK_HIT_RATES,
        _Kind.REWARD_SUMMARY,
        _Kind.THROUGHPUT,
        _Kind.PHASE_PROFILE,
    }
)
"""Events that need the totals of a round."""


@dataclass(frozen=True, slots=True)
class RunTally:
    """Progress of a run; a resumed run starts with that of its checkpoint."""

    rounds_done: int = 0
    episodes_done: int = 0
    best_score: float = math.nan
    """Best mean score of a round so far; NaN before the first, and where rounds do not compare."""


class TelemetryListener:
    """Emits the events of a run to a hub.

    listener = TelemetryListener(hub, config, "cpu", rounds_total=100, batches_per_step=8,
                                 batch_size=64, optim=spec.optim)
    listener.run_started(started)
    engine = VectorizedEngine(..., listener=listener)
    """

    def __init__(
        self,
        hub: TelemetryHub,
        config: TelemetryConfig,
        device: str,
        rounds_total: int,
        *,
        batches_per_step: int,
        batch_size: int,
        optim: OptimSettings,
        tally: RunTally | None = None,
        anomalies: AnomalyConfig | None = None,
        ranked: bool = True,
    ) -> None:
        """`ranked`: scores of rounds compare, so that one is the best; if not, that of `tally`,
        from an older session, is forgotten."""
        self.hub, self._ranked = hub, ranked
        self.config = config
        self.device = device
        self.rounds_total = rounds_total
        self.batches_per_step = batches_per_step
        self.batch_size = batch_size
        self.optim = optim
        self.tally = tally or RunTally()
        if not ranked:
            self.tally = replace(self.tally, best_score=math.nan)
        self._learning_rate = self._entropy_coef = math.nan
        """Reported in ROUND_COMPLETED; NaN if nothing learns."""
        self._slots = emitters.SlotTelemetry()
        self._totals: RoundTotals | None = None
        self.anomalies = anomalies or AnomalyConfig()
        self.clock = EscalationClock(replace(config, level=hub.level))
        """Tracks how long the level stays raised above the hub's initial level."""
        self._rounds: deque[BatchSummary] = deque(maxlen=self.anomalies.window)
        self._outcome: EpisodeOutcome | None = None
        self._masks: MaskStats | None = None

    @property
    def level(self) -> TelemetryLevel:
        """Current telemetry level."""
        return self.hub.level

    # ---- called by the trainer ------------------------------------------------------------------

    def run_started(self, started: RunStarted) -> None:
        """Emit RUN_STARTED, before the first round."""
        event = TelemetryEvent.of(started)
        emitters.emit_with_env_context(self.hub, event, None, self.device)

    def set_learner(self, learning_rate: float, entropy_coef: float) -> None:
        """Set the learner settings that ROUND_COMPLETED reports."""
        self._learning_rate, self._entropy_coef = learning_rate, entropy_coef

    def on_update(
        self,
        round_index: int,
        metrics: PPOUpdateMetrics,
        seconds: float,
        health: NetworkHealth | None = None,
    ) -> None:
        """Emit the events of an update, and check the round for anomalies."""
        health = health or NetworkHealth()
        emitters.emit_ppo_update_event(
            self.hub, metrics, health.layers, self.hub.level, round_index=round_index
        )
        spent = (PhaseTime(StepPhase.UPDATE, seconds),)
        emitters.emit_phase_profile(self.hub, self.device, spent, seconds, round_index)
        self._check_anomalies(round_index, metrics, health)

    def _check_anomalies(
        self, round_index: int, metrics: PPOUpdateMetrics, health: NetworkHealth
    ) -> None:
        """Emit the anomalies of the round, and raise the level if there are any."""
        if self.hub.level is TelemetryLevel.OFF:
            return
        report = detect_anomalies(
            self.anomalies,
            metrics=metrics,
            rounds=tuple(self._rounds),
            outcome=self._outcome,
            mask_stats=self._masks,
            layers=health.layers,
            non_finite=health.non_finite,
        )
        emit_anomaly_diagnostics(self.hub, report, round_index, None)
        self.hub.level = self.clock.after_round(report)

    def run_finished(self, status: RunStatus, seconds: float) -> None:
        """Emit RUN_FINISHED, while the hub is still open."""
        finished = RunFinished(
            status=status,
            rounds_done=self.tally.rounds_done,
            episodes_done=self.tally.episodes_done,
            seconds=seconds,
            best_score=self.tally.best_score,
            events_dropped=self.hub.report().events_dropped,
        )
        event = TelemetryEvent.of(finished)
        emitters.emit_with_env_context(self.hub, event, None, self.device)

    # ---- EngineListener -------------------------------------------------------------------------

    def on_round_start(self, round_index: int, members: int) -> None:
        """Reset the round totals; none are kept if no event records them."""
        counting = any(map(self.hub.records, ROUND_TOTAL_EVENTS))
        self._totals = RoundTotals(members) if counting else None

    def on_slot_events(self, round_index: int, step: int, payload: SlotPayload) -> None:
        """Emit slot events."""
        if self.hub.level is TelemetryLevel.OFF:
            return
        now = self.config
        if now.level is not self.hub.level:
            now = replace(now, level=self.hub.level)
        self._slots = emitters.apply_slot_telemetry(self._slots, now, step, round_index)
        emitters.emit_slot_events(self.hub, self._slots, self.device, payload)

    @np.errstate(all="ignore")
    def on_plan(self, record: PlanRecord) -> None:
        """Add a decision of the plan phase to the round totals, and emit its actions."""
        if self.hub.level is TelemetryLevel.OFF:
            self._totals = None
            return
        if self._totals is not None:
            self._totals.add_plan(record)
            self._emit_last_action(record, record.outcome, self._totals)

    @np.errstate(all="ignore")
    def on_step(self, record: StepRecord) -> None:
        """Add the step to the round totals, and emit its step events."""
        if self.hub.level is TelemetryLevel.OFF:
            self._totals = None
            return
        if self._totals is not None:
            self._totals.add(record)
            self._emit_last_action(record, record.result.outcome, self._totals)
        emitters.emit_governor(self.hub, self.device, record)
        emitters.emit_restarts(self.hub, self.device, record)
        emitters.emit_learning_rates(self.hub, self.device, record, self.optim)
        emitters.emit_counterfactuals(self.hub, self.device, record)
        self._emit_gaps(record)
        emitters.emit_step_completed(self.hub, self.device, record)

    @np.errstate(all="ignore")
    def on_round_end(self, rollout: Rollout[object]) -> None:
        """Emit the round events; the summary comes last."""
        summary = self._summary(rollout)
        self._rounds.append(summary)
        self._outcome = rollout.completed
        self._masks = None if self._totals is None else self._totals.masks
        rounds = rollout.round_index + rollout.ends_episode
        self.tally = RunTally(rounds, summary.episodes_done, summary.best_score)
        at = rollout.round_index
        emitters.emit_episode_outcome(self.hub, self.device, rollout.completed, at)
        emitters.emit_round_contexts(self.hub, self.device, rollout)
        if self._totals is not None:
            self._emit_totals(rollout, self._totals)
        emitters.emit_batch_completed(self.hub, summary, self.hub.level)
        self._totals = None

    # ---- one step -------------------------------------------------------------------------------

    def _emit_last_action(
        self, record: StepRecord | PlanRecord, outcome: ActionOutcome, totals: RoundTotals
    ) -> None:
        if not self.hub.records(_Kind.LAST_ACTION):
            return
        level = TelemetryLevel.DEBUG if self.config.step_events else self.hub.level
        emitters.emit_last_action(
            self.hub,
            None,
            self.device,
            record.decision.actions.op,
            outcome.target_slot,
            record.rewards.total,
            totals.reward_E,
            record.masks.op_EO,
            level,
            veto=outcome.veto,
            op_probability=record.decision.op_probability_EO,
            round_index=record.signals.round_index,
            step=None if record.signals.planning else record.signals.step,
        )

    def _emit_gaps(self, record: StepRecord) -> None:
        if not self.hub.records(_Kind.COUNTERFACTUAL_UNAVAILABLE):
            return
        gap_E = record.counterfactuals.gap_E
        (without,) = np.nonzero(gap_E != CounterfactualGap.NONE)
        emitters.emit_cf_unavailable(
            self.hub,
            without,
            self.device,
            gap_E[without],
            round_index=record.signals.round_index,
            step=record.signals.step,
        )

    # ---- one round ------------------------------------------------------------------------------

    def _summary(self, rollout: Rollout[object]) -> BatchSummary:
        """Summary of the round. A NaN of one member makes a mean NaN; the best score ignores NaN.

        Episodes and best score count complete episodes, not truncated rollouts.
        """
        ended, members = rollout.completed, len(rollout.outcome.score_E)
        stage_ES = rollout.final_signals.slots.stage_ES
        mean_score, best_score = float(ended.score_E.mean()), self.tally.best_score
        whole = rollout.ends_episode
        ranked = whole and self._ranked
        return BatchSummary(
            round_index=rollout.round_index,
            rounds_total=self.rounds_total,
            episodes_done=self.tally.episodes_done + members * whole,
            members=members,
            mean_reward=float(ended.episode_return_E.mean()),
            mean_accuracy=float(ended.accuracy_E.mean()),
            min_accuracy=float(ended.accuracy_E.min()),
            max_accuracy=float(ended.accuracy_E.max()),
            mean_score=mean_score,
            max_score=float(ended.score_E.max()),
            best_score=float(np.fmax(best_score, mean_score)) if ranked else best_score,
            mean_added_params=float(ended.added_params_E.mean()),
            mean_added_macs=float(ended.added_macs_E.mean()),
            learning_rate=self._learning_rate,
            entropy_coef=self._entropy_coef,
            stage_counts=tuple(np.bincount(stage_ES.ravel(), minlength=len(SeedStage)).tolist()),
            active_slots=float(np.isin(stage_ES, list(OCCUPIED_STAGES)).sum() / members),
            rollbacks=int(ended.rollbacks_E.sum()),
            member_steps_per_second=_rate(int(rollout.steps_E.sum()), rollout.seconds),
            seconds=rollout.seconds,
            mean_train_accuracy=float(rollout.train_accuracy_E[rollout.whole_E].mean()),
            cut_steps=rollout.cut_steps,
        )

    def _emit_totals(self, rollout: Rollout[object], totals: RoundTotals) -> None:
        at = rollout.round_index
        emitters.emit_action_distribution(
            self.hub,
            totals.chosen_O,
            totals.executed_O,
            legal=totals.legal_O,
            probability=totals.probability_O,
            by_stage=totals.chosen_OZ,
            slot_counts=totals.slot_chosen_S,
            slot_successes=totals.slot_executed_S,
            round_index=at,
        )
        emitters.emit_mask_hit_rates(self.hub, totals.masks, round_index=at)
        emitters.emit_episode_curve(self.hub, self.device, totals, at)
        emitters.emit_reward_summary(
            self.hub,
            None,
            self.device,
            totals.rewards,
            totals.reward_E,
            slot_reward=totals.slot_reward_S,
            round_index=at,
        )
        self._emit_speed(rollout, totals)
        phases = map(PhaseTime, StepPhase, totals.seconds_F.tolist())
        spent = [time for time in phases if time.seconds]
        emitters.emit_phase_profile(self.hub, self.device, spent, rollout.seconds, at)

    def _emit_speed(self, rollout: Rollout[object], totals: RoundTotals) -> None:
        if not self.hub.records(_Kind.THROUGHPUT):
            return
        member_steps = _rate(int(rollout.steps_E.sum()), rollout.seconds)
        emitters.emit_throughput(
            self.hub,
            None,
            self.device,
            member_steps * self.batches_per_step,
            member_steps * self.batches_per_step * self.batch_size,
            gpu_utilization(torch.device(self.device)),
            member_steps_per_second=member_steps,
            episodes_per_second=member_steps / rollout.final_signals.episode_length,
            rows_per_member=totals.rows_per_member,
            step_seconds_p50=totals.step_seconds(50),
            step_seconds_p95=totals.step_seconds(95),
            device_share=_rate(rollout.device_seconds, rollout.seconds),
            gpu_memory=gpu_memory(torch.device(self.device)),
            round_index=rollout.round_index,
        )


def _rate(count: float, seconds: float) -> float:
    """Rate per second; NaN if no time was measured."""
    return count / seconds if seconds > 0 else math.nan


class ListenerGroup:
    """Forwards every callback to several listeners, in order."""

    def __init__(self, listeners: Sequence[EngineListener]) -> None:
        self.listeners = tuple(listeners)

    def on_round_start(self, round_index: int, members: int) -> None:
        """Notify all listeners."""
        for listener in self.listeners:
            listener.on_round_start(round_index, members)

    def on_slot_events(self, round_index: int, step: int, payload: SlotPayload) -> None:
        """Notify all listeners."""
        for listener in self.listeners:
            listener.on_slot_events(round_index, step, payload)

    def on_plan(self, record: PlanRecord) -> None:
        """Notify the listeners of plan phases."""
        for listener in self.listeners:
            if isinstance(listener, PlanListener):
                listener.on_plan(record)

    def on_step(self, record: StepRecord) -> None:
        """Notify all listeners."""
        for listener in self.listeners:
            listener.on_step(record)

    def on_round_end(self, rollout: Rollout[object]) -> None:
        """Notify all listeners."""
        for listener in self.listeners:
            listener.on_round_end(rollout)
