"""An engine made ready to be timed: seeds in place, warmed up, stepped a turn at a time.

Shape letters: E members, S slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

from esper.leyline.arrays import Codes
from esper.leyline.payloads import StepPhase
from esper.leyline.protocols import PolicyProtocol
from esper.leyline.records import StepRecord
from esper.leyline.telemetry import TelemetryConfig, TelemetryLevel
from esper.nissa import JsonlSink, ParquetSink, TelemetryHub
from esper.scripts.hot_path_config import ExecutorName, HotPath, PolicyName, first_samples
from esper.scripts.machine import wait_for
from esper.scripts.stage_mix import half_of_slots_live, spread_stages
from esper.simic.rewards.score import ScoreReward
from esper.simic.telemetry.listener import TelemetryListener
from esper.tamiyo.baselines import RandomPolicy, WaitPolicy
from esper.tasks.spec import TaskData, TaskSpec
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.env_factory import configure_slot_telemetry


@dataclass(frozen=True, slots=True)
class Turn:
    """What one group of steps took."""

    seconds: float
    """Wall time, until the device had done it all and the sinks had every event."""
    cpu_seconds: float
    """CPU time of the process, all threads: on a busy machine steadier than wall time."""
    step_seconds: tuple[float, ...]
    """Host wall time of each step; its transfer waits for the device."""
    phase_seconds: dict[StepPhase, float]
    """Host wall time."""
    device_seconds: dict[str, float]
    """Of training and of validation, as the device saw them; on a CPU the host's clock."""
    train_rows: int
    """Main and shadow rows, added up over steps."""
    validation_rows: int
    """Members and coalitions, added up over steps."""

    @property
    def steps(self) -> int:
        """Steps in the turn."""
        return len(self.step_seconds)


class TimedEngine:
    """An engine whose steps are timed in turns; episodes begin outside of what is timed."""

    def __init__(
        self,
        engine: VectorizedEngine,
        client: PolicyProtocol[Any],
        prepare: Callable[[VectorizedEngine], None],
        hub: TelemetryHub | None = None,
    ) -> None:
        """`prepare`: called at the start of every episode."""
        self.engine, self.client, self.hub = engine, client, hub
        self._prepare = prepare
        self._begin()
        self.first_stage_ES: Codes = engine.env.seed_stage

    def _begin(self) -> None:
        engine = self.engine
        engine.step = 0
        with engine._memory_guard(), engine._stream():
            engine.begin_episode(self.client)
            self._prepare(engine)
        if engine.listener is not None:
            engine.listener.on_round_start(engine.round, engine.env.members)

    @property
    def stages_held(self) -> bool:
        """Whether all seeds stand where they stood at first."""
        return np.array_equal(self.first_stage_ES, self.engine.env.seed_stage)

    def turn(self, steps: int) -> Turn:
        """Time so many steps; the device is waited for before the first and after the last."""
        engine = self.engine
        before = dict(engine.phase_seconds), self._device_seconds()
        seconds, cpu_seconds, records, each = 0.0, 0.0, [], []
        left = steps
        while left:
            self.begin_if_over()
            count = min(left, engine.spec.episode_length - engine.step)
            wait_for(engine.device)
            began, cpu_began = perf_counter(), process_time()
            for _ in range(count):
                step_began = perf_counter()
                records.append(self.step())
                each.append(perf_counter() - step_began)
            if self.hub is not None:
                self.hub.settle()
            wait_for(engine.device)
            seconds += perf_counter() - began
            cpu_seconds += process_time() - cpu_began
            left -= count
        phases = {p: s - before[0][p] for p, s in engine.phase_seconds.items()}
        device = {n: s - before[1].get(n, 0.0) for n, s in self._device_seconds().items()}
        validation_rows = sum(int(r.counterfactuals.coalitions_E.sum()) for r in records)
        shadow_rows = sum(r.rows for r in records) - validation_rows
        train_rows = steps * engine.env.members + shadow_rows
        return Turn(seconds, cpu_seconds, tuple(each), phases, device, train_rows, validation_rows)

    def begin_if_over(self) -> None:
        """The next episode, where the last one is at its end."""
        if self.engine.step == self.engine.spec.episode_length:
            self.engine.round += 1
            self._begin()

    def step(self) -> StepRecord:
        """One step, timed by whoever calls."""
        engine = self.engine
        with engine._memory_guard(), engine._stream():
            record = engine._step_env(self.client, cut=False)
        engine.step += 1
        return record

    def _device_seconds(self) -> dict[str, float]:
        wait_for(self.engine.device)  # outside of what is timed: all spans are finished
        return self.engine.timer.collect()

    def close(self) -> None:
        """End the telemetry's writer."""
        if self.hub is not None:
            self.hub.close()


def make_client(policy: PolicyName, spec: TaskSpec) -> PolicyProtocol[Any]:
    """Who decides: nobody, or chance."""
    reward = ScoreReward(spec.upkeep)
    return RandomPolicy(0, reward) if policy == "random" else WaitPolicy(reward)


def build_engine(
    config: HotPath,
    members: int,
    executor: ExecutorName,
    data: TaskData,
    steps: int,
    telemetry_folder: Path | None = None,
) -> TimedEngine:
    """An engine for so many steps, before the first one.

    `data`: all of the task's. `telemetry_folder`: record events there.
    """
    spec = config.spec()
    if config.policy != "random":
        spec = replace(spec, episode_length=max(spec.episode_length, steps))
    cut = first_samples(data, config.val_images)
    engine = VectorizedEngine(spec, config.engine_config(members, executor), data=cut)
    hub = None if telemetry_folder is None else _attach(engine, telemetry_folder)

    def place_seeds(engine: VectorizedEngine) -> None:
        if config.policy == "mix":
            population = engine.env.model
            wanted_ES = half_of_slots_live(population.members, len(population.slots))
            spread_stages(population, config.blueprint, wanted_ES)

    return TimedEngine(engine, make_client(config.policy, spec), place_seeds, hub)


def _attach(engine: VectorizedEngine, folder: Path) -> TelemetryHub:
    """Record what a run records at level NORMAL, as JSON lines and as Parquet files."""
    telemetry = TelemetryConfig(level=TelemetryLevel.NORMAL)
    folder.mkdir(parents=True)
    hub = TelemetryHub([JsonlSink(folder / "events.jsonl"), ParquetSink(folder)], telemetry.level)
    configure_slot_telemetry(engine.watch, telemetry)
    engine.listener = TelemetryListener(
        hub,
        telemetry,
        str(engine.device),
        rounds_total=1,
        batches_per_step=engine.spec.batches_per_step,
        batch_size=engine.spec.batch_size,
    )
    return hub
