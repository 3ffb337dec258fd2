"""Builds the engine that the step benchmarks time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from esper.leyline.compute import ExecutorName
from esper.leyline.protocols import PolicyProtocol
from esper.leyline.telemetry import TelemetryConfig, TelemetryLevel
from esper.nissa import JsonlSink, ParquetSink, TelemetryHub
from esper.simic.rewards.score import ScoreReward
from esper.simic.telemetry.listener import TelemetryListener
from esper.tamiyo.baselines import WaitPolicy
from esper.tamiyo.make_policy import make_policy
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import TaskData
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.env_factory import configure_slot_telemetry
from hot_path_config import MIX, HotPath, first_samples
from stage_mix import half_of_slots_live, set_seed_stages
from timed_engine import TimedEngine


def make_client(config: HotPath, spec: TaskSpec) -> PolicyProtocol[Any]:
    """The policy; `WaitPolicy` for the mix."""
    reward, parsed = ScoreReward(spec.upkeep), config.parsed
    if parsed is None:
        return WaitPolicy(reward)
    return make_policy(
        parsed,
        spec,
        seed=0,
        reward=reward,
    )


def build_engine(
    config: HotPath,
    members: int,
    executor: ExecutorName,
    data: TaskData,
    steps: int,
    telemetry_folder: Path | None = None,
) -> TimedEngine:
    """Build an engine for at least `steps` steps.

    `data`: full data of the task. `telemetry_folder`: record events there.
    """
    spec = config.spec()
    if not config.acts:
        spec = replace(spec, episode_length=max(spec.episode_length, steps))
    cut = first_samples(data, config.val_images)
    engine = VectorizedEngine(spec, config.engine_config(members, executor), data=cut)
    hub, listener = None, None
    if telemetry_folder is not None:
        hub, listener = _recorder(engine, telemetry_folder)

    def place_seeds(engine: VectorizedEngine) -> None:
        if config.policy == MIX:
            population = engine.env.model
            wanted_ES = half_of_slots_live(population.members, len(population.slots))
            set_seed_stages(population, config.blueprint, wanted_ES)

    return TimedEngine(engine, make_client(config, spec), place_seeds, listener, hub)


def _recorder(engine: VectorizedEngine, folder: Path) -> tuple[TelemetryHub, TelemetryListener]:
    """Hub and listener that record at level NORMAL to JSON lines and Parquet files."""
    telemetry = TelemetryConfig(level=TelemetryLevel.NORMAL)
    folder.mkdir(parents=True)
    hub = TelemetryHub([JsonlSink(folder / "events.jsonl"), ParquetSink(folder)], telemetry.level)
    configure_slot_telemetry(engine.slot_events, telemetry)
    listener = TelemetryListener(
        hub,
        telemetry,
        str(engine.device),
        rounds_total=1,
        batches_per_step=engine.spec.batches_per_step,
        batch_size=engine.spec.batch_size,
        optim=engine.spec.optim,
    )
    return hub, listener
