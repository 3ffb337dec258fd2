"""Trains runs in several processes: this one at once, others as they become ready.

Every process takes runs from the same queue, one at a time on a CPU, and all compute with one
thread, so that results are those of one process bit for bit. With several GPUs each has
a worker, and this process trains only what cannot be sent to one.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO, Any, Final

import torch
from torch import nn

from esper.device.memory import keep_freed_memory
from esper.device.rng import forked_rng
from esper.device.threads import cpu_threads
from esper.growing.trainers.data import Samples
from esper.growing.trainers.determinism import deterministic_kernels
from esper.growing.trainers.eager import TICK_SECONDS, EagerRun
from esper.growing.trainers.job import (
    OUT_OF_MEMORY,
    Job,
    Outcome,
    Running,
    Tick,
    failed_outcome,
)
from esper.growing.trainers.kind import PLAIN
from esper.growing.trainers.kinds import Kinds
from esper.growing.trainers.messages import (
    THREADS,
    Assignment,
    Ended,
    NoMore,
    Position,
    Saved,
    Setup,
    Stop,
    Transport,
    Want,
)
from esper.growing.trainers.process_transport import ProcessTransport
from esper.growing.trainers.program import Program
from esper.growing.trainers.shipping import (
    Forms,
    data_tensors,
    read_tensors,
    rebuilt,
    task_form,
    tensor_bytes,
    write_block,
)
from esper.growing.trainers.task import Task
from esper.jobs.messages import Died, Failed
from esper.leyline.errors import EsperError
from esper.leyline.user_errors import is_out_of_memory
from esper.storage.atomic import write_atomic

SLICE_SECONDS: Final = 0.02
"""How long this process trains before it looks after its workers."""
TRIES: Final = 3
"""How often a run is started whose worker dies, and a worker that dies before it has one."""
STOP_SECONDS: Final = 30.0
"""Workers that were asked to stop, and say nothing for so long, are not waited for."""


@dataclass(slots=True)
class _Worker:
    """What is known of a worker."""

    held: dict[int, Job] = field(default_factory=dict)
    running: tuple[Running, ...] = ()
    wants: Want | None = None
    heard: float = -math.inf
    """When it last said something."""


class _OwnRun(EagerRun):
    """A run of this process."""

    def __init__(self, program: Program, threads: int) -> None:
        super().__init__(program)
        self.threads = threads


class _Queue:
    """Jobs that wait."""

    def __init__(self, jobs: Iterator[Job]) -> None:
        self._jobs = jobs
        self._ahead: deque[Job] = deque()
        self.own: deque[Job] = deque()
        """Jobs whose networks cannot be sent to a worker."""
        self.again: deque[Job] = deque()
        """Jobs of workers that have died."""

    def take(self) -> Job | None:
        """The next one."""
        return self._ahead.popleft() if self._ahead else next(self._jobs, None)

    @property
    def more(self) -> bool:
        """Whether there is a next one; it is taken from the search for that."""
        job = self.take()
        if job is not None:
            self._ahead.append(job)
        return job is not None


class WorkerTrainer:
    """A queue of runs, this process, and its workers."""

    prioritises = False

    def __init__(
        self,
        task: Task,
        count: int = 0,
        *,
        after: float = 0.0,
        trains: bool = True,
        devices: Sequence[str] = (),
        transport: Transport | None = None,
    ) -> None:
        """`count`: workers besides this process.

        after: seconds from the first run until they are started.
        trains: whether this process trains whatever comes, or only what workers cannot.
        devices: of workers, one each, in place of `count`.
        """
        self.task = task
        self._devices = tuple(devices) or (str(task.device),) * count
        self._trains = trains or not self._devices
        self._count = len(self._devices)
        self.at_once = max(1, self._count + self._trains)
        own = task.device.type == "cpu" and trains and transport is None
        self.cores = self.at_once if own else 1
        self._transport = ProcessTransport() if transport is None else transport
        self._form, self.note = task_form(task)
        """Why runs are trained only in this process; empty: they are not."""
        if task.device.type == "cpu":
            keep_freed_memory()  # activations of one batch are those of the next
        self._after, self._began = after, math.inf
        self._own_metric = self._form is not None and self._form.metric is None
        self._forms = Forms(task)
        self._kinds = Kinds(task) if task.device.type == "cuda" else None
        self._workers: dict[int, _Worker] = {}
        self._block: IO[bytes] | None = None
        self._tries: Counter[int] = Counter()
        """Deaths of workers, by the number of the run."""
        self._stillborn: Counter[int] = Counter()
        """Deaths before a first run, by the number of the worker."""
        self._failed: list[Outcome] = []
        """Of runs of this process for which there is no memory."""
        self._stopped = self._listened = -math.inf
        """When all were asked to stop, and when what they say was last taken in."""

    def train(self, jobs: Iterator[Job], tick: Tick) -> Iterator[Outcome]:
        """Train jobs and yield them as they end."""
        self._began = min(self._began, time.monotonic())
        waiting, run, stopped, ticked = _Queue(jobs), None, False, time.monotonic()
        try:
            while True:
                if not stopped:
                    self._start_workers()
                if run is None and not stopped:
                    run = self._begin(waiting)
                    if self._failed:
                        yield from self._failed
                        self._failed.clear()
                        continue
                self._answer(
                    waiting, stopped or (run is not None and bool(run.program.job.threads))
                )
                if run is None and not self._busy(waiting, stopped):
                    return
                ended = self._advance(run)
                ended += self._receive(waiting, 0.0 if run is not None else TICK_SECONDS / 2)
                if time.monotonic() - ticked >= TICK_SECONDS:
                    said, ticked = tick(self._running(run)), time.monotonic()
                    if said and not stopped:
                        stopped = True
                        ended += self._stop(run)
                if run is not None and (stopped or run.over):
                    run = None
                yield from ended
        finally:
            self._abandon()

    # ---- this process ---------------------------------------------------------------------

    def _begin(self, waiting: _Queue) -> _OwnRun | None:
        """Begin a run that workers cannot train, or the next, where this process trains too."""
        job = waiting.own.popleft() if waiting.own else None
        if job is None and self._trains:
            job = waiting.take()
            if job is None and waiting.again and not self._workers:
                job = waiting.again.popleft()
        if job is None:
            return None
        if job.threads and any(worker.held for worker in self._workers.values()):
            waiting.own.append(job)  # it has all cores, once they are free
            return None
        with self._computing():
            network = job.build()
            if self._form is not None and self._forms.describe(network) is not None:
                return self._own_run(job, network, job.threads or THREADS)
        # No other process would train it, so nothing is gained by computing as they do.
        self.at_once = self.cores = 1
        threads = torch.get_num_threads()
        with self._computing(threads):
            return self._own_run(job, network, threads)

    def _own_run(self, job: Job, network: nn.Module, threads: int) -> _OwnRun | None:
        try:
            kind = PLAIN if self._kinds is None else self._kinds.of(network, job)
            return _OwnRun(Program(job, self.task, kind, network), threads)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        self._failed.append(failed_outcome(job, self.task.device, OUT_OF_MEMORY))
        return None

    def _advance(self, run: _OwnRun | None) -> list[Outcome]:
        """Train for a moment; the outcome, if the run is over."""
        if run is None:
            return []
        with self._computing(run.threads):
            return run.advance(SLICE_SECONDS)

    def _stop(self, run: _OwnRun | None) -> list[Outcome]:
        for number, worker in self._workers.items():
            if worker.held:
                self._transport.send(number, Stop())
        cut = []
        if run is not None and not run.over:
            with self._computing(run.threads):
                cut = [run.cut()]
        self._stopped = time.monotonic()
        return cut

    @contextmanager
    def _computing(self, threads: int = THREADS) -> Iterator[None]:
        """Compute as the workers do; the user's generators and threads stay as they are."""
        device = self.task.device
        with cpu_threads(threads), forked_rng(0, device), deterministic_kernels(device):
            yield

    def _running(self, run: _OwnRun | None) -> list[Running]:
        own = [] if run is None else [run.program.running]
        return own + [one for worker in self._workers.values() for one in worker.running]

    def _busy(self, waiting: _Queue, stopped: bool) -> bool:
        """Whether something is under way, or can be once a worker is ready."""
        held = [worker for worker in self._workers.values() if worker.held]
        if stopped:
            known = (max(worker.heard, self._stopped) for worker in held)
            return any(self._listened - heard < STOP_SECONDS for heard in known)
        if held:
            return True
        left = bool(waiting.again or waiting.own or (not self._trains and waiting.more))
        if left and not self._trains and not self._workers:
            raise EsperError(f"no run can be trained: {self.note}")
        return left

    # ---- workers --------------------------------------------------------------------------

    def _start_workers(self) -> None:
        if self._form is None or time.monotonic() - self._began < self._after:
            return
        try:
            for number in range(self._count):
                if number not in self._workers and self._stillborn[number] < TRIES:
                    self._start(number)
        except OSError as error:  # no room for the samples, or for a process
            self._form, self.note = None, f"no worker starts ({error})"

    def _start(self, number: int) -> None:
        assert self._form is not None
        block = None if self._transport.remote else self._shared().fileno()
        self._transport.start(number, Setup(self._form, block, self._devices[number]))
        self._workers[number] = _Worker()

    def _shared(self) -> IO[bytes]:
        """The file of the samples."""
        if self._block is None:
            assert isinstance(self.task.train, Samples)  # there is a form
            self._block = write_block(data_tensors(self.task.train, self.task.val))
        return self._block

    def _answer(self, waiting: _Queue, none: bool) -> None:
        """Send runs to workers that want some; `none`: not now."""
        for number, worker in self._workers.items():
            if worker.wants is None:
                continue
            found = None if none else self._next(waiting)
            if found is not None:
                job, sent = found
                worker.held[job.number], worker.wants = job, None
                self._transport.send(number, sent)
            elif not worker.wants.idle:
                worker.wants = None
                self._transport.send(number, NoMore())

    def _next(self, waiting: _Queue) -> tuple[Job, Assignment] | None:
        """A run that a worker can train."""
        if waiting.own and not waiting.again:
            return None  # one at a time, for others may be of the same kind
        job = waiting.again.popleft() if waiting.again else waiting.take()
        if job is None:
            return None
        with self._computing():
            # Threads of its own are of this process: the cores of the others.
            found = None if job.threads else self._forms.describe(job.build())
        if found is None:
            waiting.own.append(job)
            return None
        form, values = found
        path, remote = job.checkpoint, self._transport.remote
        sent = replace(
            job,
            build=partial(rebuilt, form, tensor_bytes(values)),
            judged=job.judged and not self._own_metric,
            checkpoint=None if path is None or remote else path.absolute(),
        )
        state = path.read_bytes() if remote and path is not None and path.exists() else None
        return job, Assignment(sent, remote and path is not None, state)

    def _receive(self, waiting: _Queue, seconds: float) -> list[Outcome]:
        """Take in what workers say; returns runs that have ended, or were judged on the way."""
        ended = []
        messages = self._transport.receive(seconds)
        self._listened = time.monotonic()
        for number, message in messages:
            worker = self._workers.get(number)
            if worker is None:
                continue
            worker.heard = self._listened
            if isinstance(message, Ended):
                outcome = self._ended(worker, message)
                # By the user's metric the average on the way may be none: the last one stays.
                if not (outcome.under_way and math.isnan(outcome.score)):
                    ended.append(outcome)
            elif isinstance(message, Died):
                ended += self._died(number, worker, message.reason, waiting)
            else:
                self._note(worker, message)
        return ended

    def _note(self, worker: _Worker, message: Any) -> None:
        if isinstance(message, Position):
            worker.running = tuple(one for one in message.running if one.number in worker.held)
        elif isinstance(message, Want):
            worker.wants = message
        elif isinstance(message, Saved) and message.number in worker.held:
            path = worker.held[message.number].checkpoint
            assert path is not None  # else it would not have been saved
            write_atomic(path, message.state)
        elif isinstance(message, Failed):
            raise EsperError(message.text) if message.refused else RuntimeError(message.text)

    def _ended(self, worker: _Worker, message: Ended) -> Outcome:
        outcome = replace(message.outcome, weights=read_tensors(message.weights))
        job = worker.held[outcome.number]
        if not outcome.under_way:
            del worker.held[outcome.number]
            worker.running = tuple(one for one in worker.running if one.number != outcome.number)
        judges = self._own_metric and job.judged and not outcome.failed
        return self._judged(job, outcome) if judges else outcome

    def _judged(self, job: Job, outcome: Outcome) -> Outcome:
        """Judge a run by a metric that only this process has."""
        began = time.monotonic()
        with self._computing():
            network = job.build()
            network.load_state_dict(outcome.weights)
            score, loss, finite = self.task.judge(network.to(self.task.device))
        return replace(
            outcome,
            score=score if outcome.finite else math.nan,
            loss=loss,
            finite=outcome.finite and finite,
            judging=time.monotonic() - began,
        )

    # ---- deaths ---------------------------------------------------------------------------

    def _died(self, number: int, worker: _Worker, reason: str, waiting: _Queue) -> list[Outcome]:
        """Start the runs of a dead worker again; returns those whose last try it was."""
        del self._workers[number]
        given_up = []
        for run, job in worker.held.items():
            self._tries[run] += 1
            if self._tries[run] < TRIES:
                waiting.again.append(job)
                continue
            del self._tries[run]
            why = f"its worker died {TRIES} times: {reason}"
            given_up.append(failed_outcome(job, self.task.device, why))
        if not worker.held:
            self._stillborn[number] += 1
        if (
            not self._workers
            and min(self._stillborn[n] for n in range(len(self._devices))) >= TRIES
        ):
            self.note = f"no worker starts ({reason})"
        return given_up

    def _abandon(self) -> None:
        """End workers whose runs nobody waits for."""
        self._failed.clear()
        for number, worker in list(self._workers.items()):
            if worker.held:
                self._transport.end(number)
                del self._workers[number]

    def close(self) -> None:
        """End all workers."""
        self._transport.close()
        self._workers.clear()
        if self._block is not None:
            self._block.close()
            self._block = None
