"""Workers that are actors of a Ray cluster.

The search asks each actor for its messages, so that a cluster need not reach the machine of the
search. Samples are put into the cluster's store once.
"""

from __future__ import annotations

import queue
import threading
import time
import warnings
from typing import Any, Final

import ray
import torch
from ray.exceptions import RayError

import esper
from esper.growing.trainers.data import Samples
from esper.growing.trainers.messages import THREADS, Setup
from esper.growing.trainers.shipping import data_pieces, data_tensors, together
from esper.growing.trainers.task import Task
from esper.growing.trainers.worker_process import Worker
from esper.jobs.ray_workers import connect, death, other_version, require_resources
from esper.jobs.settings import JobSettings

ASK_SECONDS: Final = 5.0
"""How long an actor waits for a message of its own before it answers that there is none."""


class RayTransport:
    """Actors by number."""

    remote = True

    def __init__(self, task: Task, settings: JobSettings) -> None:
        """Connect, and put the samples into the store; a Ray of the user's own is joined."""
        assert isinstance(task.train, Samples)  # streams are not sent
        gpus = 1.0 if task.device.type == "cuda" else 0.0
        self._resources = {"num_cpus": float(THREADS), "num_gpus": gpus}
        self._joined = ray.is_initialized()
        if not self._joined:
            connect(settings)
        try:
            require_resources(self._resources)
            self.cpus = int(ray.cluster_resources().get("CPU", 1.0))
            self._block = ray.put(together(data_pieces(data_tensors(task.train, task.val))))
        except BaseException:
            self._leave()
            raise
        self._actors: dict[int, Any] = {}
        self._sent: dict[int, int] = {}
        """Messages to each."""
        self._pending: dict[Any, int] = {}
        """Workers by the messages that they will return."""

    def start(self, worker: int, setup: Setup) -> None:
        """Start an actor; it is ready when the cluster has room for it."""
        self.end(worker)
        kind = ray.remote(max_restarts=0, max_concurrency=4, **self._resources)(_RayRuns)
        self._actors[worker] = kind.remote(self._block, esper.__version__)
        self._sent[worker] = 0
        self.send(worker, setup)
        self._ask(worker)

    def _ask(self, worker: int) -> None:
        self._pending[self._actors[worker].take.remote()] = worker

    def send(self, worker: int, message: Any) -> None:
        """Send a message."""
        number = self._sent[worker]
        self._sent[worker] = number + 1
        self._actors[worker].put.remote(number, message)

    def receive(self, seconds: float) -> list[tuple[int, Any]]:
        """Messages that have arrived."""
        if not self._pending:
            time.sleep(seconds)
            return []
        done, _ = ray.wait(list(self._pending), num_returns=1, timeout=seconds)
        return [found for ref in done for found in self._read(ref)]

    def _read(self, ref: Any) -> list[tuple[int, Any]]:
        worker = self._pending.pop(ref)
        try:
            messages: list[Any] = ray.get(ref)
        except RayError as error:
            self._actors.pop(worker, None)
            return [(worker, death(error))]
        self._ask(worker)
        return [(worker, message) for message in messages]

    def end(self, worker: int) -> None:
        """End an actor."""
        actor = self._actors.pop(worker, None)
        self._pending = {ref: other for ref, other in self._pending.items() if other != worker}
        if actor is not None:
            ray.kill(actor)

    def close(self) -> None:
        """End all actors, and a Ray that was started for them."""
        for worker in list(self._actors):
            self.end(worker)
        self._leave()

    def _leave(self) -> None:
        if not self._joined and ray.is_initialized():
            ray.shutdown()


# ---- in the cluster ----------------------------------------------------------------------------


class _RayRuns:
    """Actor that trains runs."""

    def __init__(self, block: Any, version: str) -> None:
        """`block`: the samples; `version`: of the search's esper."""
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._early: dict[int, Any] = {}
        self._next, self._lock = 0, threading.Lock()
        if version != esper.__version__:
            self._outbox.put(other_version(version))
            return
        with warnings.catch_warnings(action="ignore"):  # the store is read-only, and so are we
            samples = torch.from_numpy(block)
        worker = Worker(self._outbox.put, self._inbox.get)
        threading.Thread(target=worker.serve, args=(samples,), daemon=True).start()

    def put(self, number: int, message: Any) -> None:
        """Take a message; calls of an actor with several threads may overtake each other."""
        with self._lock:
            self._early[number] = message
            while self._next in self._early:
                self._inbox.put(self._early.pop(self._next))
                self._next += 1

    def take(self) -> list[Any]:
        """Messages for the search; waits for the first."""
        found: list[Any] = []
        try:
            found.append(self._outbox.get(timeout=ASK_SECONDS))
            while True:
                found.append(self._outbox.get_nowait())
        except queue.Empty:
            return found
