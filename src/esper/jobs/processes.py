"""Workers that are processes of this machine.

Each has a pipe of its own: a process that is killed while it writes can block nobody else, and the
end of the pipe shows either side that the other has gone.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Lock, Thread
from typing import Any, Final

from esper.jobs.messages import Asked, Died, Failed, Message, Ready, outcome_of
from esper.jobs.worker import Reporter, Worker

POLL_SECONDS: Final = 1.0
"""How long `receive` waits."""


class ProcessWorkers:
    """Spawned processes."""

    def __init__(self, make: Callable[[], Worker[Any, Any]], count: int, threads: int) -> None:
        """`threads`: of torch in each process."""
        self.count = count
        self._make, self._threads = make, threads
        self._context = get_context("spawn")  # CUDA cannot be used in forked processes
        self._processes: dict[int, BaseProcess] = {}
        self._pipes: dict[int, Connection] = {}

    def start(self, worker: int) -> None:
        """Start a process."""
        ours, theirs = self._context.Pipe()
        arguments = (self._make, theirs, self._threads)
        process = self._context.Process(target=_work, args=arguments, daemon=True)
        resource_tracker.ensure_running()  # its own start would unblock Ctrl-C
        with interrupts_blocked():
            process.start()
        theirs.close()
        self._processes[worker], self._pipes[worker] = process, ours

    def assign(self, worker: int, job: Any) -> None:
        """Send a job."""
        with suppress(OSError):  # a dead process is noticed by `receive`
            self._pipes[worker].send(job)

    answer = assign

    def receive(self) -> list[tuple[int, Message]]:
        """Receive one message of every process that has sent some."""
        waiting = set(wait(list(self._pipes.values()), POLL_SECONDS))
        sent = [worker for worker, pipe in self._pipes.items() if pipe in waiting]
        return [(worker, self._receive_from(worker)) for worker in sent]

    def _receive_from(self, worker: int) -> Message:
        try:
            message: Message = self._pipes[worker].recv()
            return message
        except (EOFError, OSError):
            self._pipes.pop(worker).close()
            process = self._processes.pop(worker)
            process.join()
            return Died(
                f"its process ended with status {process.exitcode} (killed, or out of memory)"
            )

    def close(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.join()
        for pipe in self._pipes.values():
            pipe.close()


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C in this thread, and for good in a process that is started inside.

    Otherwise one would end with a traceback if it comes while the process imports torch.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class PipeChannel:
    """The end of a pipe in a process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._lock = pipe, Lock()

    def send(self, message: Any) -> None:
        """Send a message; from any thread."""
        try:
            with self._lock:
                self._pipe.send(message)
        except OSError:
            os._exit(1)  # nobody is left to take what this process trains

    def receive(self) -> Any:
        """Wait for a message; ends the process if none can come any more."""
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            os._exit(0)

    def ask(self, question: Any) -> Any:
        """Ask, and wait for the answer."""
        self.send(Asked(question))
        return self.receive()


def _work(make: Callable[[], Worker[Any, Any]], pipe: Connection, threads: int) -> None:
    """Do jobs until the command ends this process, or has gone itself.

    Ctrl-C reaches the command, which ends this; here it is blocked.
    """
    Thread(target=_end_with_command, daemon=True).start()
    import torch

    torch.set_num_threads(threads)
    channel = PipeChannel(pipe)
    made = outcome_of(make)
    if isinstance(made, Failed):
        channel.send(made)
        return
    channel.send(Ready())
    while True:
        job = channel.receive()
        channel.send(outcome_of(partial(made.result.do, job, Reporter(channel))))


def _end_with_command() -> None:
    """End this process as soon as the command has gone, however it ended."""
    command = parent_process()
    assert command is not None  # this process was started by it
    command.join()
    os._exit(1)
