"""An engine that is timed: seeds in place, warmed up, stepped a group of steps at a time.

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
from esper.tolaria.machine import wait_for


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
        listener: EngineListener | None = None,
        hub: TelemetryHub | None = None,
    ) -> None:
        """`prepare`: called at the start of every episode; `hub`: what `listener` emits to."""
        self.engine, self.client, self.hub = engine, client, hub
        self._listener = listener
        self._prepare = prepare
        self._begin()
        self.first_stage_ES: Codes = engine.env.seed_stage

    def _begin(self) -> None:
        engine = self.engine
        engine.step = 0
        with engine.computing():
            engine.begin_episode(self.client)
            self._prepare(engine)
        if self._listener is not None:
            self._listener.on_round_start(engine.round, engine.env.members)

    @property
    def stages_held(self) -> bool:
        """Whether all seeds are in the stage they were in at first."""
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
                self.hub.drain()
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
        return self.engine.step_members(self.client, self._listener)

    def _device_seconds(self) -> dict[str, float]:
        wait_for(self.engine.device)  # outside of what is timed: all spans are finished
        return self.engine.timer.collect()

    def close(self) -> None:
        """End the telemetry's writer."""
        if self.hub is not None:
            self.hub.close()
