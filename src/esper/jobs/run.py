"""Runs independent jobs and keeps their results; the command is the only one that writes.

A worker that dies (killed, out of memory, its machine lost) is replaced and its job starts again, a
limited number of times. What a job refuses, and a defect, end the run; results so far are kept.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from esper.jobs.messages import Asked, Died, Failed, Finished, Message, Ready, StepDone
from esper.jobs.ray_token import send_token
from esper.jobs.settings import LOCAL, JobSettings
from esper.jobs.worker import Reporter, Worker
from esper.leyline.errors import EsperError

J = TypeVar("J")
R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)
OnStep = Callable[[StepDone], None]
Say = Callable[[str], None]


class JobSource(Protocol[J, R_contra]):
    """The jobs of a run; called only in the command."""

    most: int
    """Jobs that may run at the same time at most."""

    def next(self) -> J | None:
        """A job that can start now; None: none, unless a running one ends."""
        ...

    def label(self, job: J) -> str:
        """The job in messages."""
        ...

    def keep(self, job: J, result: R_contra) -> None:
        """Keep the result of a job."""
        ...

    def answer(self, job: J, question: Any) -> Any:
        """Answer a question of a running job; by default they ask nothing."""
        raise TypeError(f"{self.label(job)} asked {question}")


class _Workers(Protocol):
    """Workers by number; each takes one job at a time."""

    count: int

    def start(self, worker: int) -> None:
        """Start a worker, or another in the place of one that has died."""
        ...

    def assign(self, worker: int, job: Any) -> None:
        """Give a job to a worker that is ready."""
        ...

    def answer(self, worker: int, answer: Any) -> None:
        """Answer the question of a worker."""
        ...

    def receive(self) -> list[tuple[int, Message]]:
        """Wait a moment for messages."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...


def run_jobs(
    make: Callable[[], Worker[J, R]],
    source: JobSource[J, R],
    settings: JobSettings,
    on_step: OnStep | None = None,
    say: Say | None = None,
) -> None:
    """Do all jobs of a source.

    make: makes the worker of a process; it must be importable there.
    on_step: called with the steps of all jobs.
    say: called with a line when a job has to start again.
    """
    if settings.inline:
        _run_inline(make(), source, on_step)
        return
    workers = _open(make, min(settings.processes, source.most), settings)
    try:
        _Run(source, workers, settings, on_step, say).run()
    finally:
        workers.close()


def _open(make: Callable[[], Any], count: int, settings: JobSettings) -> _Workers:
    if settings.on == LOCAL:
        from esper.jobs.processes import ProcessWorkers

        return ProcessWorkers(make, count, _threads_of_job(settings))
    if settings.address is not None:
        send_token()  # before Ray is imported: it reads its settings then
    from esper.jobs.ray_workers import RayWorkers

    return RayWorkers(make, count, _threads_of_job(settings), settings)


def _threads_of_job(settings: JobSettings) -> int:
    """Threads of torch in a worker: OMP_NUM_THREADS, else its share of the processor."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    if settings.on != LOCAL:
        return max(1, int(1.0 if settings.job_cpus is None else settings.job_cpus))
    import torch

    return max(1, torch.get_num_threads() // settings.processes)


# ---- in this process ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Inline(Generic[J]):
    """Channel of a job in this process."""

    job: J
    source: JobSource[J, Any]
    on_step: OnStep | None

    def send(self, message: StepDone) -> None:
        if self.on_step is not None:
            self.on_step(message)

    def ask(self, question: Any) -> Any:
        return self.source.answer(self.job, question)


def _run_inline(worker: Worker[J, R], source: JobSource[J, R], on_step: OnStep | None) -> None:
    while (job := source.next()) is not None:
        source.keep(job, worker.do(job, Reporter(_Inline(job, source, on_step))))


# ---- by workers --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Attempt(Generic[J]):
    job: J
    number: int


class _Run(Generic[J, R]):
    """One run of jobs by workers."""

    def __init__(
        self,
        source: JobSource[J, R],
        workers: _Workers,
        settings: JobSettings,
        on_step: OnStep | None,
        say: Say | None,
    ) -> None:
        self._source, self._workers, self._tries = source, workers, settings.job_tries
        self._on_step, self._say = on_step, say
        self._idle: list[int] = []
        self._running: dict[int, _Attempt[J]] = {}
        self._again: deque[_Attempt[J]] = deque()
        self._stillborn: Counter[int] = Counter()
        """Deaths of workers before they were ready."""

    def run(self) -> None:
        for worker in range(self._workers.count):
            self._workers.start(worker)
        while not self._assign():
            for worker, message in self._workers.receive():
                self._handle(worker, message)

    def _assign(self) -> bool:
        """Give jobs to idle workers; returns whether all is done."""
        while self._idle:
            attempt = self._next()
            if attempt is None:
                return not self._running
            worker = self._idle.pop(0)
            self._running[worker] = attempt
            self._workers.assign(worker, attempt.job)
        return False

    def _next(self) -> _Attempt[J] | None:
        if self._again:
            return self._again.popleft()
        job = self._source.next()
        return None if job is None else _Attempt(job, 1)

    def _handle(self, worker: int, message: Message) -> None:
        if isinstance(message, StepDone):
            if self._on_step is not None:
                self._on_step(message)
        elif isinstance(message, Ready):
            self._idle.append(worker)
        elif isinstance(message, Finished):
            self._source.keep(self._running.pop(worker).job, message.result)
            self._idle.append(worker)
        elif isinstance(message, Asked):
            answer = self._source.answer(self._running[worker].job, message.question)
            self._workers.answer(worker, answer)
        elif isinstance(message, Failed):
            raise EsperError(message.text) if message.refused else RuntimeError(message.text)
        else:
            self._died(worker, message)

    def _died(self, worker: int, message: Died) -> None:
        """Start the job of a dead worker again, unless that was its last try."""
        if worker in self._idle:
            self._idle.remove(worker)
        attempt = self._running.pop(worker, None)
        if attempt is None:
            self._stillborn[worker] += 1
            what, tried = "a worker without a job", self._stillborn[worker]
        else:
            what, tried = self._source.label(attempt.job), attempt.number
        if tried >= self._tries:
            raise EsperError(
                f"{what}: {message.reason}, at {tried} of {self._tries} tries; what was finished "
                f"is kept: run it again with fewer --processes, or more --job-tries"
            )
        if self._say is not None:
            self._say(f"{what}: {message.reason}; try {tried + 1} of {self._tries}")
        if attempt is not None:
            self._again.append(_Attempt(attempt.job, tried + 1))
        self._workers.start(worker)
