"""Results of rounds and runs under policies that do not learn, for `train` and `compare`.

Shape letters: T steps, E members, S slots.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from esper.leyline.arrays import Bools, Codes, Doubles
from esper.leyline.context import PLAIN_ROUND, MemberContexts, RoundContext
from esper.leyline.payloads import EpisodeOutcome, SlotPayload
from esper.leyline.prices import ScoreConstants
from esper.leyline.protocols import EngineListener
from esper.leyline.records import Rollout, StepRecord
from esper.tasks.scoring import charge_length
from esper.tolaria.device_info import describe_device
from esper.tolaria.engine import VectorizedEngine


@dataclass(frozen=True, slots=True, eq=False)
class RoundResult:
    """Result of one round for all members."""

    outcome: EpisodeOutcome
    test_E: Doubles
    """Accuracy on the test data."""
    accuracy_TE: Doubles
    """On `val_score`; row 0 is the fresh host."""
    score_TE: Doubles
    stage_TES: Codes
    """`SeedStage` at each observation."""
    leaving_TES: Bools
    """Pruned seeds whose alpha is still falling."""
    seconds: float
    round_context: RoundContext = PLAIN_ROUND
    """What all members of the round share; of older versions, the task as it is."""
    member_contexts: MemberContexts | None = None
    """Prices, caps and rates of the members; None in results of older versions."""


@dataclass(frozen=True, slots=True, eq=False)
class RunResult:
    """Results of all rounds of a run, with its settings and device."""

    task: str
    """Name of the task."""
    rounds: list[RoundResult]
    slots: tuple[str, ...]
    blueprints: tuple[str, ...]
    host_params: int
    host_macs: int
    executor: str
    executor_reason: str
    profile: str
    machine: dict[str, str]
    member_steps_per_second: float
    """Over all rounds, without the first step of each; NaN if there is no other."""
    telemetry: str
    """Summary of the recorded events; empty if telemetry is off."""


@dataclass(slots=True)
class StageRecorder:
    """Listener that records the seed stages of a round and the time of each step."""

    stages: list[Codes] = field(default_factory=list)
    leaving: list[Bools] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    """Duration of each step of the run, without the first of each round."""
    _last_end: float | None = None

    def on_round_start(self, round_index: int, members: int) -> None:
        """Clear the stages of the previous round."""
        self.stages.clear()
        self.leaving.clear()
        self._last_end = None

    def on_slot_events(self, round_index: int, step: int, payload: SlotPayload) -> None:
        """No-op: stages are read in `on_step`."""

    def on_step(self, record: StepRecord) -> None:
        """Record the stages and the time since the previous step."""
        self.stages.append(record.signals.slots.stage_ES)
        self.leaving.append(record.signals.slots.pruning_ES)
        now = time.monotonic()
        if self._last_end is not None:
            self.step_seconds.append(now - self._last_end)
        self._last_end = now

    def on_round_end(self, rollout: Rollout[object]) -> None:
        """No-op."""


def run_round(
    engine: VectorizedEngine,
    policy: Any,
    recorder: StageRecorder,
    listener: EngineListener | None = None,
) -> RoundResult:
    """Run one round; `listener`: defaults to `recorder`, and must include it otherwise."""
    rollout = engine.run_rollout(policy, listener or recorder)
    return RoundResult(
        outcome=rollout.outcome,
        test_E=engine.test(),
        accuracy_TE=engine.episode.score_accuracy_TE.copy(),
        score_TE=engine.episode.score_TE.copy(),
        stage_TES=np.stack(recorder.stages),
        leaving_TES=np.stack(recorder.leaving),
        seconds=rollout.seconds,
        round_context=rollout.round_context,
        member_contexts=rollout.member_contexts,
    )


def charge_for_length(result: RoundResult, length: float, constants: ScoreConstants) -> RoundResult:
    """Charge the FLOPs of episodes `length` times as long as the task's to the score."""
    outcome = result.outcome
    score_E, flops_ratio_E = charge_length(
        outcome.score_E, outcome.flops_ratio_E, length, constants
    )
    score_TE, _ = charge_length(result.score_TE, outcome.flops_ratio_E, length, constants)
    outcome = replace(outcome, score_E=score_E, flops_ratio_E=flops_ratio_E)
    return replace(result, outcome=outcome, score_TE=score_TE)


def make_run_result(
    engine: VectorizedEngine, rounds: list[RoundResult], recorder: StageRecorder, telemetry: str
) -> RunResult:
    """Build the result of a run; `telemetry`: summary of its events."""
    choice = engine.env.model.choice
    assert choice is not None  # set by the first forward pass
    spent = sum(recorder.step_seconds)
    rate = engine.env.members * len(recorder.step_seconds) / spent if spent > 0 else float("nan")
    return RunResult(
        task=engine.spec.name,
        rounds=rounds,
        slots=engine.env.model.slots,
        blueprints=engine.env.model.blueprints,
        host_params=engine.episode.host_params,
        host_macs=engine.episode.host_macs,
        executor=choice.executor.name,
        executor_reason=choice.reason,
        profile=engine.config.profile,
        machine=describe_device(engine.device),
        member_steps_per_second=rate,
        telemetry=telemetry,
    )
