"""What became of the members of a round, and of all rounds of a run.

`train` runs rounds until its count is done, `judging` one for each policy; both keep this.

Shape letters: T steps, E members, S slots.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from esper.leyline.arrays import Bools, Codes, Doubles
from esper.leyline.payloads import EpisodeOutcome, SlotPayload
from esper.leyline.prices import ScoreConstants
from esper.leyline.protocols import EngineListener
from esper.leyline.records import Rollout, StepRecord
from esper.tasks.scoring import charge_length
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.machine import describe


@dataclass(frozen=True, slots=True, eq=False)
class RoundResult:
    """What became of the members of one round."""

    outcome: EpisodeOutcome
    test_E: Doubles
    """Accuracy on the test data."""
    accuracy_TE: Doubles
    """On `val_score`, the fresh host first."""
    score_TE: Doubles
    stage_TES: Codes
    """`SeedStage` as each step was observed."""
    leaving_TES: Bools
    """A pruned seed whose alpha was falling."""
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class RunResult:
    """All rounds of a run, and what it ran on."""

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
    """Of all rounds, the first step of each left out; NaN where there is no other."""
    telemetry: str
    """What became of the events, in words; empty where none were asked for."""


@dataclass(slots=True)
class StageDiary:
    """A listener that keeps the stages of a round, for the picture."""

    stages: list[Codes] = field(default_factory=list)
    leaving: list[Bools] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    """How long each step of the run took, the first of each round left out."""
    _last_end: float | None = None

    def on_round_start(self, round_index: int, members: int) -> None:
        """Forget the round before."""
        self.stages.clear()
        self.leaving.clear()
        self._last_end = None

    def on_slot_events(self, round_index: int, step: int, payload: SlotPayload) -> None:
        """Not needed: stages are read off the steps."""

    def on_step(self, record: StepRecord) -> None:
        """Keep what stood there."""
        self.stages.append(record.signals.slots.stage_ES)
        self.leaving.append(record.signals.slots.pruning_ES)
        now = time.monotonic()
        if self._last_end is not None:
            self.step_seconds.append(now - self._last_end)
        self._last_end = now

    def on_round_end(self, rollout: Rollout[object]) -> None:
        """Nothing more to keep."""


def run_round(
    engine: VectorizedEngine,
    policy: Any,
    diary: StageDiary,
    listener: EngineListener | None = None,
) -> RoundResult:
    """One round under a policy that does not learn; `listener`: a group with `diary` in it."""
    rollout = engine.run_rollout(policy, listener or diary)
    return RoundResult(
        outcome=rollout.outcome,
        test_E=engine.test(),
        accuracy_TE=engine.book.score_accuracy_TE.copy(),
        score_TE=engine.book.score_TE.copy(),
        stage_TES=np.stack(diary.stages),
        leaving_TES=np.stack(diary.leaving),
        seconds=rollout.seconds,
    )


def paid_for_length(done: RoundResult, length: float, constants: ScoreConstants) -> RoundResult:
    """The result of episodes `length` times as long as the task's, as `compare` scores them."""
    outcome = done.outcome
    score_E, flops_ratio_E = charge_length(
        outcome.score_E, outcome.flops_ratio_E, length, constants
    )
    score_TE, _ = charge_length(done.score_TE, outcome.flops_ratio_E, length, constants)
    outcome = replace(outcome, score_E=score_E, flops_ratio_E=flops_ratio_E)
    return replace(done, outcome=outcome, score_TE=score_TE)


def result_of(
    engine: VectorizedEngine, rounds: list[RoundResult], diary: StageDiary, told: str
) -> RunResult:
    """The rounds, and what they ran on."""
    choice = engine.env.model.choice
    assert choice is not None  # the engine showed the population an input
    spent = sum(diary.step_seconds)
    rate = engine.env.members * len(diary.step_seconds) / spent if spent > 0 else float("nan")
    return RunResult(
        task=engine.spec.name,
        rounds=rounds,
        slots=engine.env.model.slots,
        blueprints=engine.env.model.blueprints,
        host_params=engine.book.host_params,
        host_macs=engine.book.host_macs,
        executor=choice.executor.name,
        executor_reason=choice.reason,
        profile=engine.config.profile,
        machine=describe(engine.device),
        member_steps_per_second=rate,
        telemetry=told,
    )
