"""Trains runs in several processes: this one at once, others as they become ready.

Every process takes one run at a time from the same queue, and all compute with the same number of
threads, so that results are those of one process bit for bit.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch

from esper.device.rng import forked_rng
from esper.growing.trainers.data import Samples
from esper.growing.trainers.eager import TICK_SECONDS, EagerRun
from esper.growing.trainers.job import Job, Outcome, Running, Tick
from esper.growing.trainers.messages import (
    Assignment,
    Died,
    Ended,
    Failed,
    NoMore,
    Position,
    Saved,
    Setup,
    Stop,
    Transport,
    Want,
)
from esper.growing.trainers.process_transport import ProcessTransport
from esper.growing.trainers.shipping import Forms, data_form, shipped, task_form, write_block
from esper.growing.trainers.task import Task
from esper.leyline.errors import EsperError
from esper.storage.atomic import write_atomic

SLICE_SECONDS: Final = 0.02
"""How long this process trains before it looks after its workers."""
SILENT_SECONDS: Final = 60.0
"""A worker that has been silent for so long is given up."""
TRIES: Final = 3
"""How often a run is started whose worker dies, and a worker that dies before it has one."""
WORTH_SECONDS: Final = 20.0
"""Searches that are shorter end before workers have paid for their start."""


def workers_for(seconds: float, cores: int) -> int:
    """Worker processes besides the calling one for a search of so many seconds.

    >>> workers_for(10.0, 8), workers_for(60.0, 8), workers_for(60.0, 1)
    (0, 7, 0)
    """
    return max(0, cores - 1) if seconds >= WORTH_SECONDS else 0


@dataclass(slots=True)
class _Worker:
    """What is known of a worker."""

    heard: float
    """When it last said something, or was started."""
    held: dict[int, tuple[Job, Assignment]] = field(default_factory=dict)
    running: tuple[Running, ...] = ()
    wants: Want | None = None


class _Queue:
    """Jobs that wait: those that only this process can train, and those that come back."""

    def __init__(self, jobs: Iterator[Job]) -> None:
        self._jobs = jobs
        self.own: deque[Job] = deque()
        """Jobs whose networks cannot be sent to a worker."""
        self.again: deque[tuple[Job, Assignment]] = deque()
        """Jobs of workers that have died."""

    def take(self) -> Job | None:
        """A job for this process."""
        return self.own.popleft() if self.own else next(self._jobs, None)

    def put_back(self, job: Job) -> None:
        """A job that was taken too early."""
        self.own.append(job)


class WorkerTrainer:
    """A queue of runs, this process, and its workers."""

    def __init__(
        self,
        task: Task,
        count: int = 0,
        threads: int = 1,
        *,
        devices: Sequence[str] = (),
        transport: Transport | None = None,
    ) -> None:
        """`count`: workers besides this process.

        devices: of workers, one each; this process then only feeds them.
        """
        self.task, self._threads = task, threads
        self._devices = tuple(devices) or (str(task.device),) * count
        self._trains = not devices
        """Whether this process trains as well."""
        self._transport = ProcessTransport() if transport is None else transport
        self._form, self.note = task_form(task)
        """Why runs are trained in this process alone; empty: they are not."""
        self._own_metric = self._form is not None and shipped(task.metric) is None
        self._forms = Forms(task)
        self._workers: dict[int, _Worker] = {}
        self._folder: Path | None = None
        self._tries: Counter[int] = Counter()
        """Deaths of workers, by the number of the run."""
        self._stillborn: Counter[int] = Counter()
        """Deaths before a first run, by the number of the worker."""

    def train(self, jobs: Iterator[Job], tick: Tick) -> Iterator[Outcome]:
        """Train jobs and yield them as they end."""
        self._start_workers()
        waiting, run, stopped, ticked = _Queue(jobs), None, False, time.monotonic()
        try:
            while True:
                if run is None and self._trains and not stopped:
                    run = self._begin(waiting)
                self._answer(waiting, stopped)
                if run is None and not self._busy(waiting, stopped):
                    return
                ended = self._advance(run)
                ended += self._receive(waiting, 0.0 if run is not None else TICK_SECONDS / 2)
                if time.monotonic() - ticked >= TICK_SECONDS:
                    said, ticked = tick(self._running(run)), time.monotonic()
                    if said and not stopped:
                        stopped = True
                        ended += self._stop(run)
                if run is not None and (stopped or run.program.done):
                    run = None
                yield from ended
        finally:
            self._abandon()

    # ---- this process ---------------------------------------------------------------------

    def _begin(self, waiting: _Queue) -> EagerRun | None:
        job = waiting.take()
        if job is None and waiting.again and not self._workers:
            job, _ = waiting.again.popleft()
        if job is None:
            return None
        with self._computing():
            return EagerRun(job, self.task)

    def _advance(self, run: EagerRun | None) -> list[Outcome]:
        """Train for a moment; the outcome, if the run is over."""
        if run is None:
            return []
        with self._computing():
            return [run.outcome()] if run.advance(SLICE_SECONDS) else []

    def _stop(self, run: EagerRun | None) -> list[Outcome]:
        for number, worker in self._workers.items():
            if worker.held:
                self._transport.send(number, Stop())
        if run is None or run.program.done:
            return []
        with self._computing():
            run.save()
            return [run.outcome()]

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Compute as the workers do; the user's generators and threads stay as they are."""
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            with forked_rng(0, self.task.device):
                yield
        finally:
            torch.set_num_threads(before)

    def _running(self, run: EagerRun | None) -> list[Running]:
        own = [] if run is None else [run.program.running]
        return own + [one for worker in self._workers.values() for one in worker.running]

    def _busy(self, waiting: _Queue, stopped: bool) -> bool:
        """Whether something is under way, or can be once a worker is ready."""
        if any(worker.held for worker in self._workers.values()):
            return True
        if stopped:
            return False
        if not self._trains and not self._workers:
            raise EsperError(f"no worker starts: {self.note}")
        if not self._trains and not waiting.own and (job := waiting.take()) is not None:
            waiting.put_back(job)  # for the first worker that is ready
        return bool(waiting.again or waiting.own)

    # ---- workers --------------------------------------------------------------------------

    def _start_workers(self) -> None:
        for number in range(len(self._devices)):
            if number not in self._workers and self._stillborn[number] < TRIES:
                self._start(number)

    def _start(self, number: int) -> None:
        if self._form is None:
            return
        if not self._transport.remote and self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="esper-grow-"))
            assert isinstance(self.task.train, Samples)  # there is a form
            write_block(self._folder / "data", data_form(self.task.train, self.task.val)[1])
        block = None if self._folder is None else str(self._folder / "data")
        setup = Setup(self._form, block, self._devices[number], self._threads)
        self._transport.start(number, setup)
        self._workers[number] = _Worker(time.monotonic())

    def _answer(self, waiting: _Queue, stopped: bool) -> None:
        """Send runs to workers that want some."""
        for number, worker in self._workers.items():
            if worker.wants is None:
                continue
            found = None if stopped else self._next(waiting)
            if found is not None:
                worker.held[found[1].number] = found
                worker.heard, worker.wants = time.monotonic(), None
                self._transport.send(number, found[1])
            elif not worker.wants.idle:
                worker.wants = None
                self._transport.send(number, NoMore())

    def _next(self, waiting: _Queue) -> tuple[Job, Assignment] | None:
        """A run that a worker can train."""
        if waiting.again:
            job, sent = waiting.again.popleft()
            return job, replace(sent, state=self._state(job))
        if waiting.own and self._trains:
            return None  # this process is behind; it takes the next one
        job_or_none = waiting.take()
        if job_or_none is None:
            return None
        job = job_or_none
        with self._computing():
            found = self._forms.describe(job.build())
        if found is not None:
            checkpoint = "" if self._transport.remote else str(job.checkpoint.absolute())
            form, values = found
            return job, Assignment(
                job.number, form, values, job.recipe, job.seed, checkpoint, self._state(job)
            )
        if not self._trains:
            raise EsperError(
                f"run {job.number}: its network holds code of your own, which workers do not have; "
                f"train on one device"
            )
        waiting.put_back(job)
        return None

    def _state(self, job: Job) -> bytes | None:
        """What a run continues from, for a worker on another machine."""
        if self._transport.remote and job.checkpoint.exists():
            return job.checkpoint.read_bytes()
        return None

    def _receive(self, waiting: _Queue, seconds: float) -> list[Outcome]:
        """Take in what workers say; returns runs that have ended."""
        ended = []
        for number, message in self._transport.receive(seconds):
            worker = self._workers.get(number)
            if worker is None:
                continue
            worker.heard = time.monotonic()
            if isinstance(message, Ended):
                ended.append(self._ended(worker, message))
            elif isinstance(message, Died):
                self._died(number, worker, message.reason, waiting)
            else:
                self._note(worker, message)
        self._end_silent(waiting)
        return ended

    def _note(self, worker: _Worker, message: Any) -> None:
        if isinstance(message, Position):
            worker.running = tuple(one for one in message.running if one.number in worker.held)
        elif isinstance(message, Want):
            worker.wants = message
        elif isinstance(message, Saved) and message.number in worker.held:
            write_atomic(worker.held[message.number][0].checkpoint, message.state)
        elif isinstance(message, Failed):
            raise EsperError(message.text) if message.refused else RuntimeError(message.text)

    def _ended(self, worker: _Worker, message: Ended) -> Outcome:
        outcome = message.form.read()
        job, _ = worker.held.pop(outcome.number)
        worker.running = tuple(one for one in worker.running if one.number != outcome.number)
        return self._judged(job, outcome) if self._own_metric else outcome

    def _judged(self, job: Job, outcome: Outcome) -> Outcome:
        """Judge a run by a metric that only this process has."""
        with self._computing():
            network = job.build()
            network.load_state_dict(outcome.weights)
            score, loss, finite = self.task.judge(network.to(self.task.device))
        known = score if outcome.finite else math.nan
        return replace(outcome, score=known, loss=loss, finite=outcome.finite and finite)

    # ---- deaths ---------------------------------------------------------------------------

    def _end_silent(self, waiting: _Queue) -> None:
        """Give up workers that say nothing; one of a cluster may wait for room before it starts."""
        late = time.monotonic() - SILENT_SECONDS
        for number, worker in list(self._workers.items()):
            if worker.heard < late and (worker.held or not self._transport.remote):
                self._transport.end(number)
                self._died(number, worker, "its process says nothing any more", waiting)

    def _died(self, number: int, worker: _Worker, reason: str, waiting: _Queue) -> None:
        """Start the runs of a dead worker again, unless it was their last try."""
        del self._workers[number]
        for run, (job, sent) in worker.held.items():
            self._tries[run] += 1
            if self._tries[run] >= TRIES:
                raise EsperError(
                    f"run {run}: {reason}, at {TRIES} of {TRIES} tries; what is finished is kept: "
                    f"go on with fewer workers, or a smaller batch size"
                )
            waiting.again.append((job, sent))
        if not worker.held:
            self._stillborn[number] += 1
        if self._stillborn[number] < TRIES:
            self._start(number)
        elif not self._workers:
            self.note = f"no worker starts ({reason})"

    def _abandon(self) -> None:
        """End workers whose runs nobody waits for."""
        for number, worker in list(self._workers.items()):
            if worker.held:
                self._transport.end(number)
                del self._workers[number]

    def close(self) -> None:
        """End all workers."""
        self._transport.close()
        self._workers.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
