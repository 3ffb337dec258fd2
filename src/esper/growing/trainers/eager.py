"""Trains runs one after the other in this process, as a plain loop does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator
from typing import Final

from esper.device.memory import keep_freed_memory
from esper.device.rng import forked_rng
from esper.growing.runs import How
from esper.growing.trainers.determinism import deterministic_kernels, tolerate_others
from esper.growing.trainers.job import OUT_OF_MEMORY, Job, Outcome, Tick, failed_outcome
from esper.growing.trainers.kinds import Kinds
from esper.growing.trainers.program import Program
from esper.growing.trainers.task import Task
from esper.leyline.user_errors import is_out_of_memory

TICK_SECONDS: Final = 0.1
"""How often `tick` is called."""
CHECKPOINT_SECONDS: Final = 60.0
"""How often a run under way is saved."""


class EagerRun:
    """A run that is trained for a moment at a time."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.over = False
        """Its outcome was returned."""
        self._saved = time.monotonic()

    def advance(self, seconds: float) -> list[Outcome]:
        """Train for a moment, a batch at least; its outcome, if it ended, or is judged by now."""
        try:
            return self._advance(seconds)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        self.over = True
        return [failed_outcome(self.program.job, self.program.device, OUT_OF_MEMORY)]

    def _advance(self, seconds: float) -> list[Outcome]:
        program, began = self.program, time.monotonic()
        until, now = began + seconds, began
        with tolerate_others(not program.kind.bitwise):
            while not program.done:
                program.run_eager()
                now = time.monotonic()
                if now >= until:
                    break
        program.seconds += now - began
        if program.done:
            self.over = True
            return [program.outcome(self._how)]
        if now - self._saved > CHECKPOINT_SECONDS:
            program.save()
            self._saved = time.monotonic()
        return program.judge_on_the_way(self._how) if program.wants_judging else []

    def cut(self) -> Outcome:
        """Save and judge it as it is."""
        self.program.save()
        self.over = True
        return self.program.outcome(self._how)

    @property
    def _how(self) -> How:
        return self.program.how("eager")


class EagerTrainer:
    """One run after the other."""

    at_once = cores = 1
    prioritises = False

    def __init__(self, task: Task) -> None:
        self.task = task
        self._kinds = Kinds(task) if task.device.type == "cuda" else None
        if task.device.type == "cpu":
            keep_freed_memory()  # activations of one batch are those of the next

    def train(self, jobs: Iterator[Job], tick: Tick) -> Iterator[Outcome]:
        """Train jobs and yield them as they end."""
        for job in jobs:
            stopped = yield from self._train(job, tick)
            if stopped:
                return

    def _train(self, job: Job, tick: Tick) -> Generator[Outcome, None, bool]:
        """Train a job; whether it was stopped."""
        with self._settings():
            run = self._begin(job)
        if run is None:
            yield failed_outcome(job, self.task.device, OUT_OF_MEMORY)
            return False
        while not run.over:
            with self._settings():
                found = run.advance(TICK_SECONDS)
            yield from found
            if not run.over and tick([run.program.running]):
                with self._settings():
                    cut = run.cut()
                yield cut
                return True
        return False

    def _begin(self, job: Job) -> EagerRun | None:
        """A run; None: there is no memory for it."""
        try:
            return EagerRun(
                Program(job, self.task) if self._kinds is None else self._kinds.program(job)
            )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        return None

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        """The user's generators and settings are put back afterwards."""
        with forked_rng(0, self.task.device), deterministic_kernels(self.task.device):
            yield

    def close(self) -> None:
        """Nothing is left to end."""
