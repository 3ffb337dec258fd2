"""Episodes of an audit trained in several processes.

A population of small networks uses few cores of a CPU, and on a GPU it launches many short kernels.
Contexts are independent, so each process trains whole ones. Only the parent writes: a folder has
one writer, and what is not finished is trained again by the next run.
"""

from __future__ import annotations

import os
import queue
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from typing import Any, Final, Generic, Protocol, TypeVar

import torch

from esper.audit.forwarding import ForwardingListener
from esper.leyline.arrays import Floats
from esper.leyline.errors import EsperError
from esper.leyline.records import StepRecord

J = TypeVar("J")
J_contra = TypeVar("J_contra", contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

POLL_SECONDS: Final = 1.0
"""How often the parent looks whether all processes live."""


@dataclass(frozen=True, slots=True)
class StepDone:
    """One step of an episode in one of the processes."""

    label: str
    work: float
    """Of the whole episode."""
    accuracy_E: Floats


@dataclass(frozen=True, slots=True)
class Finished(Generic[R]):
    """Result of a job."""

    result: R


@dataclass(frozen=True, slots=True)
class Failed:
    """What a process ended with; `refused`: a message for the user, not a defect."""

    text: str
    refused: bool


class Reporter(ForwardingListener):
    """Engine listener that sends each step to the parent, and ends with it."""

    def __init__(self, messages: Any) -> None:
        super().__init__(None)
        self._messages = messages
        self._label, self._work = "", 0.0

    def begin(self, label: str, work: float) -> None:
        """Name the next episode."""
        self._label, self._work = label, work

    def on_step(self, record: StepRecord) -> None:
        """Send the step."""
        parent = parent_process()
        if parent is not None and not parent.is_alive():
            os._exit(1)  # nobody is left to write what this process trains
        self._messages.put(StepDone(self._label, self._work, record.signals.val_accuracy_E))


class Worker(Protocol[J_contra, R_co]):
    """Does the jobs of one process."""

    def do(self, job: J_contra, reporter: Reporter) -> R_co:
        """Train the episodes of a job."""
        ...


def run_in_processes(
    make: Callable[[], Worker[J, R]],
    jobs: Sequence[J],
    processes: int,
    keep: Callable[[R], None],
    on_step: Callable[[StepDone], None] | None = None,
) -> None:
    """Do the jobs in their order; `keep` receives the result of each when it is done.

    `make`: makes the worker of a process; it must be importable there.
    """
    context = get_context("spawn")  # CUDA cannot be used in forked processes
    waiting, messages = context.Queue(), context.Queue()
    count = min(processes, len(jobs))
    for job in [*jobs, *[None] * count]:
        waiting.put(job)
    threads = max(1, torch.get_num_threads() // processes)
    workers = [
        context.Process(target=_work, args=(make, waiting, messages, threads), daemon=True)
        for _ in range(count)
    ]
    try:
        for worker in workers:
            worker.start()
        _collect(messages, workers, len(jobs), keep, on_step)
    finally:
        for worker in workers:
            if worker.pid is not None:
                worker.terminate()
                worker.join()


def _collect(
    messages: Any,
    workers: Sequence[BaseProcess],
    jobs: int,
    keep: Callable[[R], None],
    on_step: Callable[[StepDone], None] | None,
) -> None:
    """Receive what processes send until all jobs are done; raises when one has failed."""
    while jobs:
        try:
            message = messages.get(timeout=POLL_SECONDS)
        except queue.Empty:
            _require_alive(workers)
            continue
        if isinstance(message, Failed):
            raise EsperError(message.text) if message.refused else RuntimeError(message.text)
        if isinstance(message, Finished):
            keep(message.result)
            jobs -= 1
        elif on_step is not None:
            on_step(message)


def _require_alive(workers: Sequence[BaseProcess]) -> None:
    for worker in workers:
        if worker.exitcode:
            raise EsperError(
                f"a process of the audit ended with status {worker.exitcode} (killed, or out of "
                f"memory); what was finished is kept: run it again with fewer --processes"
            )


def _work(make: Callable[[], Worker[J, R]], waiting: Any, messages: Any, threads: int) -> None:
    """Do jobs until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads)
    try:
        worker = make()
        while (job := waiting.get()) is not None:
            messages.put(Finished(worker.do(job, Reporter(messages))))
    except EsperError as error:
        messages.put(Failed(str(error), refused=True))
    except Exception:
        messages.put(Failed(traceback.format_exc(), refused=False))
