"""Trains runs one after the other in this process, as a plain loop does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from esper.device.memory import keep_freed_memory
from esper.device.rng import forked_rng
from esper.growing.runs import How
from esper.growing.trainers.job import Job, Outcome, Tick
from esper.growing.trainers.program import Program
from esper.growing.trainers.task import Task

TICK_SECONDS: Final = 0.1
"""How often `tick` is called."""
SAVE_SECONDS: Final = 60.0
"""How often a run under way is saved."""


class EagerTrainer:
    """One run after the other."""

    speedup = 1.0

    def __init__(self, task: Task) -> None:
        self.task = task
        if task.device.type == "cpu":
            keep_freed_memory()  # activations of one batch are those of the next

    def train(self, jobs: Iterator[Job], tick: Tick) -> Iterator[Outcome]:
        """Train jobs and yield them as they end."""
        for job in jobs:
            with forked_rng(0, self.task.device):  # the user's generators stay as they are
                outcome, stopped = self._run(job, tick)
            yield outcome
            if stopped:
                return

    def _run(self, job: Job, tick: Tick) -> tuple[Outcome, bool]:
        program = Program(job, self.task)
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
        return program.outcome(self.how()), stopped and not program.done

    def how(self) -> How:
        """How its runs are computed."""
        precision = "bfloat16" if self.task.amp else "float32"
        return How(device=str(self.task.device), trainer="eager", precision=precision)

    def close(self) -> None:
        """Nothing is left to end."""
