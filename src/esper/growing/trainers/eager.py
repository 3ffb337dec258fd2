"""Trains runs one after the other in this process, as a plain loop does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from esper.device.memory import keep_freed_memory
from esper.device.rng import forked_rng
from esper.growing.trainers.determinism import deterministic_kernels, tolerate_others
from esper.growing.trainers.job import Job, Outcome, Tick
from esper.growing.trainers.kinds import Kinds
from esper.growing.trainers.program import Program
from esper.growing.trainers.task import Task

TICK_SECONDS: Final = 0.1
"""How often `tick` is called."""
SAVE_SECONDS: Final = 60.0
"""How often a run under way is saved."""


class EagerTrainer:
    """One run after the other."""

    at_once = cores = 1

    def __init__(self, task: Task) -> None:
        self.task = task
        self._kinds = Kinds(task) if task.device.type == "cuda" else None
        if task.device.type == "cpu":
            keep_freed_memory()  # activations of one batch are those of the next

    def train(self, jobs: Iterator[Job], tick: Tick) -> Iterator[Outcome]:
        """Train jobs and yield them as they end."""
        for job in jobs:
            # The user's generators and settings stay as they are.
            with forked_rng(0, self.task.device), deterministic_kernels(self.task.device):
                outcome, stopped = self._run(job, tick)
            yield outcome
            if stopped:
                return

    def _run(self, job: Job, tick: Tick) -> tuple[Outcome, bool]:
        program = Program(job, self.task) if self._kinds is None else self._kinds.program(job)
        with tolerate_others(not program.kind.bitwise):
            return self._train(program, tick)

    def _train(self, program: Program, tick: Tick) -> tuple[Outcome, bool]:
        began = ticked = saved = time.monotonic()
        earlier, stopped = program.seconds, False
        while not program.done and not stopped:
            program.run_eager()
            now = time.monotonic()
            if now - ticked < TICK_SECONDS:
                continue
            ticked, program.seconds = now, earlier + now - began
            stopped = tick([program.running])
            if stopped or now - saved > SAVE_SECONDS:
                program.save()
                saved = time.monotonic()
        program.seconds = earlier + time.monotonic() - began
        return program.outcome(program.how("eager")), stopped and not program.done

    def close(self) -> None:
        """Nothing is left to end."""
