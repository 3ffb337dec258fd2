"""One run of `train`: engine, policy, telemetry and progress put together, round after round.

Shape letters: T steps, E members, S slots, N members of all rounds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from esper.karn.run_progress import RunProgressSink
from esper.leyline.arrays import Bools, Codes, Doubles
from esper.leyline.payloads import EpisodeOutcome, SlotPayload
from esper.leyline.protocols import EngineListener, SinkProtocol
from esper.leyline.records import Rollout, StepRecord
from esper.leyline.telemetry import TelemetryConfig, TelemetryEventType, TelemetryLevel
from esper.nissa import JsonlSink, ParquetSink, TelemetryHub
from esper.nissa.shared import use_hub
from esper.scripts.train_config import Recording, Train
from esper.simic.rewards.score import ScoreReward
from esper.simic.telemetry.listener import ListenerGroup
from esper.simic.telemetry.run_telemetry import run_telemetry
from esper.tasks.spec import TaskSpec
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


def run(config: Train, spec: TaskSpec) -> RunResult:
    """Train all rounds under a policy that does not learn."""
    policy = config.make_policy(spec, ScoreReward(spec.upkeep))
    engine = VectorizedEngine(spec, config.engine_config(), data=spec.load(config.data_dir))
    diary = StageDiary()
    recording, folder = config.recording, config.recording.telemetry_dir
    told = TelemetryConfig(level=recording.level)
    with (
        shown_progress(recording),
        event_files(recording, folder) as hub,
        run_telemetry(hub, told, spec, engine.device, config.rounds) as telemetry,
    ):
        telemetry.run_started(engine, config.policy)
        listeners = ListenerGroup([diary, *telemetry.listeners])
        rounds = [run_round(engine, policy, diary, listeners) for _ in range(config.rounds)]
    kept = f"{hub.report()} ({folder})" if folder else ""
    return result_of(engine, rounds, diary, kept)


def run_round(
    engine: VectorizedEngine,
    policy: Any,
    diary: StageDiary,
    listener: EngineListener | None = None,
) -> RoundResult:
    """One round under a policy that does not learn; `listener`: `diary`, if not more."""
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


@contextmanager
def shown_progress(recording: Recording) -> Iterator[None]:
    """Show the progress of runs, unless the recording is quiet."""
    if recording.quiet:
        yield
        return
    console = Console() if sys.stdout.isatty() else Console(width=120)
    steps = (TelemetryEventType.STEP_COMPLETED,)
    with use_hub(TelemetryHub([RunProgressSink(console)], TelemetryLevel.NORMAL, always=steps)):
        yield


@contextmanager
def event_files(recording: Recording, folder: Path | None) -> Iterator[TelemetryHub]:
    """A hub that writes events to `folder` as JSON lines and Parquet; None: to nowhere."""
    sinks: list[SinkProtocol] = []
    if folder is not None:
        sinks = [JsonlSink(folder / "events.jsonl"), ParquetSink(folder)]
    with TelemetryHub(sinks, recording.level) as hub:
        yield hub
