"""Workers that are actors of a Ray cluster.

Jobs and results are arguments and return values of the actors. Steps and questions go through one
more actor, the mailbox, which the command empties: a cluster need not reach the command's machine.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import ray
from ray.exceptions import RayActorError, RayError

import esper
from esper.jobs.messages import Asked, Died, Failed, Finished, Message, Ready, StepDone, outcome_of
from esper.jobs.ray_token import ADVICE
from esper.jobs.settings import JobSettings
from esper.jobs.worker import Reporter, Worker
from esper.leyline.errors import EsperError, shorten

POLL_SECONDS: Final = 0.1
"""How long `receive` waits for results before it empties the mailbox."""
RESTART_SECONDS: Final = 1.0
"""How long a worker waits for a mailbox that is started again."""


class RayWorkers:
    """Actors, each with its CPUs and GPUs."""

    def __init__(
        self,
        make: Callable[[], Worker[Any, Any]],
        count: int,
        threads: int,
        settings: JobSettings,
    ) -> None:
        """Connect; `threads`: of torch in each actor."""
        self.count, self._make, self._threads = count, make, threads
        self._resources = {
            "num_cpus": 1.0 if settings.job_cpus is None else settings.job_cpus,
            "num_gpus": settings.job_gpus or 0.0,
        }
        connect(settings)
        try:
            require_resources(self._resources)
            self._mailbox = ray.remote(num_cpus=0, max_restarts=-1)(_Mailbox).remote()
        except BaseException:
            ray.shutdown()
            raise
        self._lives = 0
        self._life: dict[int, int] = {}
        """Number of the actor that each worker is now."""
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, int] = {}
        """Workers by the result that they will return."""

    def start(self, worker: int) -> None:
        """Start an actor; it is ready when the cluster has room for it."""
        self._lives += 1
        self._life[worker] = self._lives
        kind = ray.remote(max_restarts=0, **self._resources)(_RayWorker)
        actor = kind.remote(
            self._make, self._mailbox, self._lives, self._threads, os.getcwd(), esper.__version__
        )
        self._actors[worker] = actor
        self._pending[actor.ready.remote()] = worker

    def assign(self, worker: int, job: Any) -> None:
        """Call the actor."""
        self._pending[self._actors[worker].do.remote(job)] = worker

    def answer(self, worker: int, answer: Any) -> None:
        """Answer through the mailbox."""
        self._mailbox.answer.remote(self._life[worker], answer)

    def receive(self) -> list[tuple[int, Message]]:
        """Results that have arrived, and what was in the mailbox before them."""
        done, _ = ray.wait(list(self._pending), num_returns=1, timeout=POLL_SECONDS)
        by_life = {life: worker for worker, life in self._life.items()}
        found: list[tuple[int, Message]] = [
            (by_life[life], message) for life, message in self._mail() if life in by_life
        ]
        return found + [self._result(ref) for ref in done]

    def _mail(self) -> list[tuple[int, Message]]:
        try:
            found: list[tuple[int, Message]] = ray.get(self._mailbox.take.remote())
            return found
        except RayActorError:  # it is started again; only steps were lost
            return []

    def _result(self, ref: Any) -> tuple[int, Message]:
        worker = self._pending.pop(ref)
        try:
            return worker, ray.get(ref)
        except RayError as error:
            return worker, death(error)

    def close(self) -> None:
        """End all actors, and a Ray that was started for them."""
        for actor in self._actors.values():
            ray.kill(actor)
        ray.kill(self._mailbox)
        ray.shutdown()


def connect(settings: JobSettings) -> None:
    """Start or join Ray; an address that does not answer is one line."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Without it Ray warns of a change that actors without GPUs do not notice.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    address = settings.address
    if address is not None:
        _require_answer(address, settings.ray_timeout)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # the line says it
            ray.init(address=address, **quiet)
    except Exception as error:  # Ray raises several kinds, by what is wrong with a cluster
        line = shorten(" ".join(str(error).split()), 200)
        advice = "" if address is None else f"; {ADVICE}"
        raise EsperError(f"--on {settings.on}: Ray does not start ({line}){advice}") from error


def _require_answer(address: str, seconds: float) -> None:
    """Raise unless something listens at the address; Ray itself would wait for minutes."""
    parts = urlsplit(address)
    end = time.monotonic() + seconds
    while True:
        left = max(0.1, end - time.monotonic())
        try:
            port = parts.port  # raises if it is too large
            with socket.create_connection((parts.hostname, port), timeout=left):
                return
        except (OSError, ValueError) as error:
            unknown = isinstance(error, socket.gaierror | ValueError)
            if unknown or time.monotonic() >= end:
                raise EsperError(
                    f"--on {address}: no Ray cluster there ({error}), waited "
                    f"{0 if unknown else seconds:g} s; check the address (its port is 10001 unless "
                    f"ray start was given --ray-client-server-port)"
                ) from error
            time.sleep(min(0.5, left))


def require_resources(wanted: dict[str, float]) -> None:
    """Raise if no machine of the cluster could ever run a job."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for flag, name, key in (("--job-cpus", "CPU", "num_cpus"), ("--job-gpus", "GPU", "num_gpus")):
        largest = max((node.get(name, 0.0) for node in nodes), default=0.0)
        if wanted[key] > largest:
            raise EsperError(
                f"{flag} {wanted[key]:g}: the largest machine of the cluster has {largest:g} "
                f"{name}s"
            )


def death(error: RayError) -> Failed | Died:
    """What an error of Ray's says of a worker."""
    text = " ".join(str(error).split())
    if "No module named 'esper" in text:
        return Failed(
            f"a machine of the cluster has no esper: install Esper {esper.__version__} there",
            refused=True,
        )
    return Died(f"its worker has gone ({type(error).__name__}: killed, out of memory, or lost)")


# ---- in the cluster ----------------------------------------------------------------------------


class _Mailbox:
    """Actor that holds messages until the command takes them."""

    def __init__(self) -> None:
        self._messages: list[tuple[int, Message]] = []
        self._answers: dict[int, asyncio.Future[Any]] = {}

    async def put(self, life: int, message: StepDone) -> None:
        """Add a message of an actor."""
        self._messages.append((life, message))

    async def ask(self, life: int, question: Any) -> Any:
        """Add a question; returns its answer."""
        answer = asyncio.get_running_loop().create_future()
        self._answers[life] = answer
        self._messages.append((life, Asked(question)))
        return await answer

    async def answer(self, life: int, answer: Any) -> None:
        """Answer the question of an actor."""
        waiting = self._answers.pop(life, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def take(self) -> list[tuple[int, Message]]:
        """Empty the mailbox."""
        found, self._messages = self._messages, []
        return found


class _MailChannel:
    """Channel of an actor."""

    def __init__(self, mailbox: Any, life: int) -> None:
        self._mailbox, self._life = mailbox, life

    def send(self, message: StepDone) -> None:
        self._mailbox.put.remote(self._life, message)  # not awaited: it may come late, or never

    def ask(self, question: Any) -> Any:
        while True:
            try:
                return ray.get(self._mailbox.ask.remote(self._life, question))
            except RayActorError:  # the mailbox is started again, without the question
                time.sleep(RESTART_SECONDS)


class _RayWorker:
    """Actor that does jobs."""

    def __init__(
        self,
        make: Callable[[], Worker[Any, Any]],
        mailbox: Any,
        life: int,
        threads: int,
        folder: str,
        version: str,
    ) -> None:
        """`folder`: working folder of the command; `version`: its esper."""
        import torch

        torch.set_num_threads(threads)
        if Path(folder).is_dir():  # so that relative paths mean the same
            os.chdir(folder)
        self._channel = _MailChannel(mailbox, life)
        self._made = outcome_of(make) if version == esper.__version__ else other_version(version)

    def ready(self) -> Message:
        """Whether jobs can be done here."""
        return self._made if isinstance(self._made, Failed) else Ready()

    def do(self, job: Any) -> Message:
        """Do a job."""
        assert isinstance(self._made, Finished)  # `ready` comes first
        worker: Worker[Any, Any] = self._made.result
        return outcome_of(lambda: worker.do(job, Reporter(self._channel)))


def other_version(version: str) -> Failed:
    """The line for a machine with another Esper than the command's."""
    return Failed(
        f"machine {socket.gethostname()} of the cluster has esper {esper.__version__}, this "
        f"command {version}: install the same on all",
        refused=True,
    )
