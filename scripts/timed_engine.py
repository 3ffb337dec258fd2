"""Timing of engine steps for benchmarks.

Shape letters: E members, S slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any

import numpy as np

from esper.leyline.arrays import Codes
from esper.leyline.payloads import StepPhase
from esper.leyline.protocols import EngineListener, PolicyProtocol
from esper.leyline.records import StepRecord
from esper.nissa import TelemetryHub
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.runtime import synchronize_device


@dataclass(frozen=True, slots=True)
class StepTimings:
    """Timings of a group of steps."""

    seconds: float
    """Wall time until the device is idle and the sinks have every event."""
    cpu_seconds: float
    """CPU time of all threads; less noisy than wall time on a busy machine."""
    step_seconds: tuple[float, ...]
    """Host wall time of each step, including its wait for the device."""
    phase_seconds: dict[StepPhase, float]
    """Host wall time of each phase."""
    device_seconds: dict[str, float]
    """Device time of training and validation; host time on a CPU."""
    train_rows: int
    """Main and shadow rows, summed over steps."""
    validation_rows: int
    """Members and coalitions, summed over steps."""

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.step_seconds)


class TimedEngine:
    """Runs and times an engine's steps; starting an episode is not timed."""

    def __init__(
        self,
        engine: VectorizedEngine,
        client: PolicyProtocol[Any],
        prepare: Callable[[VectorizedEngine], None],
        listener: EngineListener | None = None,
        hub: TelemetryHub | None = None,
    ) -> None:
        """`prepare`: called at the start of every episode; `hub`: the one `listener` emits to."""
        self.engine, self.client, self.hub = engine, client, hub
        self._listener = listener
        self._prepare = prepare
        self._start_episode()
        self.first_stage_ES: Codes = engine.env.seed_stage

    def _start_episode(self) -> None:
        engine = self.engine
        engine.step = 0
        with engine.computing():
            engine.begin_episode(self.client)
            self._prepare(engine)
        if self._listener is not None:
            self._listener.on_round_start(engine.round, engine.env.members)

    @property
    def stages_unchanged(self) -> bool:
        """Whether all seeds are still in their initial stage."""
        return np.array_equal(self.first_stage_ES, self.engine.env.seed_stage)

    def time_steps(self, steps: int) -> StepTimings:
        """Run and time `steps` steps; synchronises the device before and after."""
        engine = self.engine
        before = dict(engine.phase_seconds), self._device_seconds()
        seconds, cpu_seconds, records, step_seconds = 0.0, 0.0, [], []
        left = steps
        while left:
            self.start_episode_if_done()
            count = min(left, engine.spec.episode_length - engine.step)
            synchronize_device(engine.device)
            began, cpu_began = perf_counter(), process_time()
            for _ in range(count):
                step_began = perf_counter()
                records.append(self.step())
                step_seconds.append(perf_counter() - step_began)
            if self.hub is not None:
                self.hub.drain()
            synchronize_device(engine.device)
            seconds += perf_counter() - began
            cpu_seconds += process_time() - cpu_began
            left -= count
        phases = {p: s - before[0][p] for p, s in engine.phase_seconds.items()}
        device = {n: s - before[1].get(n, 0.0) for n, s in self._device_seconds().items()}
        validation_rows = sum(int(r.counterfactuals.coalitions_E.sum()) for r in records)
        shadow_rows = sum(r.rows for r in records) - validation_rows
        train_rows = steps * engine.env.members + shadow_rows
        return StepTimings(
            seconds, cpu_seconds, tuple(step_seconds), phases, device, train_rows, validation_rows
        )

    def start_episode_if_done(self) -> None:
        """Start the next episode if the current one is complete."""
        if self.engine.step == self.engine.spec.episode_length:
            self.engine.round += 1
            self._start_episode()

    def step(self) -> StepRecord:
        """Run one step without timing it."""
        return self.engine.step_members(self.client, self._listener)

    def _device_seconds(self) -> dict[str, float]:
        synchronize_device(self.engine.device)  # not timed; finishes all spans
        return self.engine.timer.collect()

    def close(self) -> None:
        """Close the telemetry hub."""
        if self.hub is not None:
            self.hub.close()
