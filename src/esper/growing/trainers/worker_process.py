"""A worker of a search: trains the runs that it is sent, in a process of its own.

One thread reads, one says several times a second where the runs are, and the main thread trains.
A process ends as soon as that of the search has gone, however it ended.
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from esper.growing.trainers.in_process import process_trainer
from esper.growing.trainers.job import Job, Outcome, Running, Trainer
from esper.growing.trainers.messages import (
    THREADS,
    Assignment,
    Ended,
    NoMore,
    Position,
    Saved,
    Stop,
    Want,
)
from esper.growing.trainers.shipping import read_block, tensor_bytes
from esper.jobs.messages import Failed, outcome_of
from esper.jobs.processes import PipeChannel

BEAT_SECONDS: Final = 0.25
"""How often a worker says where its runs are."""
LOOK_SECONDS: Final = 1.0
"""How often it looks whether the process of the search is still there."""


class Worker:
    """Trains runs as messages ask for it."""

    def __init__(self, send: Callable[[Any], None], receive: Callable[[], Any]) -> None:
        """`send`: sends a message, from any thread; `receive`: waits for one."""
        self._send, self._receive = send, receive
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._running: tuple[Running, ...] = ()
        self._remote: dict[int, tuple[Path, int]] = {}
        """Files of runs whose state travels, and which version of each was sent."""
        self._sending = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def serve(self, block: Tensor | None = None) -> None:
        """Train until the search ends; `block`: the samples, if they are in no file."""
        opened = outcome_of(partial(self._open, block))
        if isinstance(opened, Failed):
            self._send(opened)
            return
        threading.Thread(target=self._beat, daemon=True).start()
        with tempfile.TemporaryDirectory(prefix="esper-worker-") as folder:
            while True:
                done = outcome_of(partial(self._train, opened.result, Path(folder)))
                if isinstance(done, Failed):
                    self._send(done)
                self._running = ()

    def _open(self, block: Tensor | None) -> Trainer:
        setup = self._inbox.get()
        torch.set_num_threads(THREADS)
        if setup.block is not None:
            block = read_block(setup.block, setup.task.data.bytes)
        return process_trainer(setup.task.task(block, setup.device))

    # ---- threads --------------------------------------------------------------------------

    def _read(self) -> None:
        while True:
            received = outcome_of(self._receive)
            if isinstance(received, Failed):  # what cannot be read here
                self._send(received)
                return
            message = received.result
            if isinstance(message, Stop):
                self._stop.set()
                continue
            if isinstance(message, Assignment):
                self._stop.clear()  # the stop was for runs before it
            self._inbox.put(message)

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            self._send(Position(self._running))
            self._send_states()

    def _send_states(self) -> None:
        """Send checkpoints that are new; one is replaced as a whole, so it can be read any time."""
        with self._sending:
            for number, (path, version) in list(self._remote.items()):
                if path.exists() and path.stat().st_mtime_ns != version:
                    self._remote[number] = path, path.stat().st_mtime_ns
                    self._send(Saved(number, path.read_bytes()))

    # ---- training -------------------------------------------------------------------------

    def _train(self, trainer: Trainer, folder: Path) -> None:
        for outcome in trainer.train(self._jobs(folder), self._tick):
            self._ended(outcome)

    def _tick(self, running: Sequence[Running]) -> bool:
        self._running = tuple(running)
        return self._stop.is_set()

    def _jobs(self, folder: Path) -> Iterator[Job]:
        """Runs, as the trainer has room for them."""
        idle = True
        while True:
            self._send(Want(idle))
            message = self._inbox.get()
            if isinstance(message, NoMore):
                return
            idle = False
            yield self._job(message, folder)

    def _job(self, message: Assignment, folder: Path) -> Job:
        job = message.job
        if message.travels:
            job = replace(job, checkpoint=self._travelling(message, folder))
        self._running = (*self._running, Running(job.number, 0, job.recipe.batches))
        return job

    def _travelling(self, message: Assignment, folder: Path) -> Path:
        """File of a run whose state is kept by the search, on another machine."""
        path, version = folder / f"{message.job.number}.safetensors", 0
        path.unlink(missing_ok=True)
        if message.state is not None:
            path.write_bytes(message.state)
            version = path.stat().st_mtime_ns
        with self._sending:
            self._remote[message.job.number] = path, version
        return path

    def _ended(self, outcome: Outcome) -> None:
        if not outcome.under_way:
            self._send_states()
            with self._sending:
                path, _ = self._remote.pop(outcome.number, (None, 0))
            if path is not None:
                path.unlink(missing_ok=True)
            self._running = tuple(r for r in self._running if r.number != outcome.number)
        self._send(Ended(replace(outcome, weights={}), tensor_bytes(outcome.weights)))


def main(descriptor: int, parent: int) -> None:
    """Work for the process that started this one, through a pipe."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    channel = PipeChannel(Connection(descriptor))
    Worker(channel.send, channel.receive).serve()


def _end_with(parent: int) -> None:
    """End with the search; a process that it forked may hold its end of the pipe open."""
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os._exit(0)
