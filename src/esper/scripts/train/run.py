"""One run of `train`: engine, policy, telemetry and progress put together, round after round."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from esper.karn.run_progress import RunProgressSink
from esper.leyline.payloads import RunStarted, RunStatus
from esper.leyline.protocols import SinkProtocol
from esper.leyline.telemetry import TelemetryConfig, TelemetryEventType, TelemetryLevel
from esper.nissa import JsonlSink, ParquetSink, TelemetryHub
from esper.scripts.train.config import Recording, Train
from esper.simic.rewards.score import ScoreReward
from esper.simic.telemetry.listener import ListenerGroup, RunTally, TelemetryListener
from esper.tasks.spec import TaskSpec
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.env_factory import configure_slot_telemetry
from esper.tolaria.machine import describe
from esper.tolaria.round_results import (
    RunResult,
    StageDiary,
    paid_for_length,
    result_of,
    run_round,
)


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
