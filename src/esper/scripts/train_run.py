"""One run of `train`: engine, policy, telemetry and progress put together, round after round.

Shape letters: T steps, E members, S slots, N members of all rounds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from esper.karn.run_progress import RunProgressSink
from esper.leyline.arrays import Bools, Codes, Doubles
from esper.leyline.payloads import EpisodeOutcome, RunStarted, RunStatus, SlotPayload
from esper.leyline.prices import ScoreConstants
from esper.leyline.protocols import SinkProtocol
from esper.leyline.records import Rollout, StepRecord
from esper.leyline.telemetry import TelemetryConfig, TelemetryEventType, TelemetryLevel
from esper.nissa import JsonlSink, ParquetSink, TelemetryHub
from esper.scripts.train_config import Recording, Train
from esper.simic.rewards.score import ScoreReward
from esper.simic.telemetry.listener import ListenerGroup, RunTally, TelemetryListener
from esper.tasks.scoring import charge_length
from esper.tasks.spec import TaskSpec
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.env_factory import configure_slot_telemetry
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


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Who is told of a run, and the hubs behind them."""

    listeners: list[TelemetryListener]
    hubs: list[TelemetryHub]
    folder: Path | None
    """Where events are kept."""

    def told(self) -> str:
        """What became of the events, once the run is over; empty where none were asked for."""
        return f"{self.hubs[-1].report()} ({self.folder})" if self.folder else ""


def run(config: Train, spec: TaskSpec) -> RunResult:
    """Train all rounds under a policy that does not learn."""
    parsed = config.parsed
    longer = spec.lengthened(parsed.longer)
    policy = config.make_policy(longer, ScoreReward(spec.upkeep))
    engine = VectorizedEngine(longer, config.engine_config(), data=spec.load(config.data_dir))
    diary = StageDiary()
    folder = config.recording.telemetry_dir
    with telemetry_of(engine, parsed.label, config.rounds, config.recording, folder) as telemetry:
        engine.listener = ListenerGroup([diary, *telemetry.listeners])
        rounds = [run_round(engine, policy, diary) for _ in range(config.rounds)]
    length = longer.episode_length / spec.episode_length
    rounds = [paid_for_length(done, length, spec.score) for done in rounds]
    return result_of(engine, rounds, diary, telemetry.told())


@contextmanager
def telemetry_of(
    engine: VectorizedEngine,
    policy: str,
    rounds: int,
    recording: Recording,
    folder: Path | None,
    tally: RunTally | None = None,
) -> Iterator[Telemetry]:
    """Listeners for a run of this engine: told when it starts, and how it ended.

    `folder`: where events are kept, if anywhere; `tally`: how far a run is that goes on.
    """
    told = TelemetryConfig(level=recording.level)
    configure_slot_telemetry(engine.watch, told)
    with _hubs(recording, folder) as hubs:
        listeners = [
            TelemetryListener(
                hub,
                told,
                str(engine.device),
                rounds,
                batches_per_step=engine.spec.batches_per_step,
                batch_size=engine.spec.batch_size,
                tally=tally,
            )
            for hub in hubs
        ]
        began = time.monotonic()
        for listener in listeners:
            listener.run_started(_started(engine, policy, rounds))
        status = RunStatus.FAILED
        try:
            yield Telemetry(listeners, hubs, folder)
            status = RunStatus.COMPLETED
        except KeyboardInterrupt:
            status = RunStatus.INTERRUPTED
            raise
        finally:
            for listener in listeners:
                listener.run_finished(status, time.monotonic() - began)


def run_round(engine: VectorizedEngine, policy: Any, diary: StageDiary) -> RoundResult:
    """One round under a policy, and what became of its members."""
    (rollout,) = engine.train(policy, 1)
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


@contextmanager
def _hubs(recording: Recording, folder: Path | None) -> Iterator[list[TelemetryHub]]:
    """The hub of the progress display and, where events are kept, the hub of the files."""
    hubs = []
    if not recording.quiet:
        console = Console() if sys.stdout.isatty() else Console(width=120)
        steps = (TelemetryEventType.STEP_COMPLETED,)
        hubs.append(TelemetryHub([RunProgressSink(console)], TelemetryLevel.NORMAL, always=steps))
    if folder is not None:
        sinks: list[SinkProtocol] = [JsonlSink(folder / "events.jsonl"), ParquetSink(folder)]
        hubs.append(TelemetryHub(sinks, recording.level))
    try:
        yield hubs
    finally:
        for hub in hubs:
            hub.close()


def _started(engine: VectorizedEngine, policy: str, rounds: int) -> RunStarted:
    spec, config, choice = engine.spec, engine.config, engine.env.model.choice
    assert choice is not None  # the engine showed the population an input
    machine = describe(engine.device)
    return RunStarted(
        run_name=f"{policy} on {spec.name}",
        task=spec.name,
        policy=policy,
        seed=config.seed,
        rounds=rounds,
        members=config.members,
        episode_length=spec.episode_length,
        batches_per_step=spec.batches_per_step,
        batch_size=spec.batch_size,
        control_images=len(engine.validator.control),
        score_images=len(engine.validator.score),
        profile=config.profile,
        executor=choice.executor.name,
        executor_reason=choice.reason,
        device=machine["device"],
        versions=(("python", machine["python"]), ("torch", machine["torch"])),
        slot_ids=engine.env.model.slots,
        blueprints=engine.env.model.blueprints,
        host_params=engine.book.host_params,
        host_macs=engine.book.host_macs,
    )
