"""Workers that are processes of this machine, each with a pipe of its own.

They are started as programs of their own, not by `multiprocessing`, which would run the user's
script again in each of them unless it has a main guard.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from esper.growing.trainers.messages import THREADS, Setup
from esper.jobs.messages import Died
from esper.jobs.processes import interrupts_blocked

END_SECONDS: Final = 5.0
"""How long an ended process may take to go."""


class ProcessTransport:
    """Processes by number."""

    remote = False

    def __init__(self) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._pipes: dict[int, Connection] = {}

    def start(self, worker: int, setup: Setup) -> None:
        """Start a process; it reads its setup once it has imported what it needs."""
        ours, theirs = socket.socketpair()
        path = [entry or os.getcwd() for entry in sys.path]
        program = (
            f"import sys; sys.path[:] = {path!r}\n"
            f"from esper.growing.trainers.worker_process import main\n"
            f"main({theirs.fileno()}, {os.getpid()})"
        )
        shared = [theirs.fileno(), *([] if setup.block is None else [setup.block])]
        environment = os.environ | {"OMP_NUM_THREADS": str(THREADS)}
        nowhere = subprocess.DEVNULL
        with interrupts_blocked():  # Ctrl-C is for the search, which says what to do
            self._processes[worker] = subprocess.Popen(
                [sys.executable, "-P", "-c", program],
                pass_fds=shared,
                stdin=nowhere,
                stdout=nowhere,
                stderr=nowhere,
                env=environment,
            )
        theirs.close()
        self._pipes[worker] = Connection(ours.detach())
        self.send(worker, setup)

    def pid(self, worker: int) -> int:
        """Process of a worker."""
        return self._processes[worker].pid

    def send(self, worker: int, message: Any) -> None:
        """Send a message."""
        with suppress(OSError, KeyError):  # a dead process is noticed by `receive`
            self._pipes[worker].send(message)

    def receive(self, seconds: float) -> list[tuple[int, Any]]:
        """All messages that have arrived."""
        numbers = {pipe: worker for worker, pipe in self._pipes.items()}
        found: list[tuple[int, Any]] = []
        for pipe in wait(list(numbers), seconds):
            assert isinstance(pipe, Connection)
            found += [(numbers[pipe], message) for message in self._read(numbers[pipe], pipe)]
        return found

    def _read(self, worker: int, pipe: Connection) -> Iterator[Any]:
        try:
            while pipe.poll():
                yield pipe.recv()
        except (EOFError, OSError):
            status = self.end(worker)
            yield Died(f"its process ended with status {status} (killed, or out of memory)")

    def end(self, worker: int) -> int | None:
        """End a process; returns its status."""
        pipe, process = self._pipes.pop(worker, None), self._processes.pop(worker, None)
        if pipe is not None:
            pipe.close()
        if process is None:
            return None
        try:
            # One that has closed its pipe is about to end: its own status says more than ours.
            return process.wait(timeout=0.5 if process.poll() is None else 0)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait(timeout=END_SECONDS)

    def close(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.kill()
        for worker in list(self._processes):
            self.end(worker)
