"""Which trainer a search uses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import nn

from esper.device.memory import free_bytes
from esper.device.rng import forked_rng
from esper.device.threads import cores
from esper.growing.ranks import Ranks, ShardRanks
from esper.growing.trainers.in_process import process_trainer
from esper.growing.trainers.job import Trainer
from esper.growing.trainers.shipping import Forms, task_form
from esper.growing.trainers.task import Task
from esper.growing.trainers.workers import WorkerTrainer
from esper.jobs.ray_token import send_token
from esper.jobs.settings import LOCAL, JobSettings
from esper.leyline.errors import EsperError

WORKER_BYTES: Final = 2**30
"""Memory that a worker may need."""
START_SECONDS: Final = 10.0
"""After so many seconds a search that may take any time is given workers."""
WORTH_SECONDS: Final = 20.0
"""Searches that are shorter end before workers have paid for their start."""


def trainer_for(
    task: Task,
    seconds: float,
    ranks: Ranks,
    build: Callable[[], nn.Module],
    jobs: JobSettings | None = None,
) -> Trainer:
    """The trainer for a device.

    seconds: how long the search may take.
    build: makes the user's model on the CPU.
    jobs: where its runs are trained; None: on this machine.
    """
    if isinstance(ranks, ShardRanks):
        from esper.growing.trainers.sharded import ShardedTrainer

        return ShardedTrainer(task, ranks)
    if jobs is not None and jobs.on != LOCAL:
        return _on_ray(task, jobs)
    if seconds < WORTH_SECONDS:
        return process_trainer(task)
    if task.device.type != "cpu":
        devices = gpus(task.device)
        if len(devices) == 1 or not _travels(task, build):
            return process_trainer(task)  # one GPU that captures is faster than eager runs on it
        return WorkerTrainer(task, trains=False, devices=devices)
    count = min(cores() - 1, int(min(free_bytes(task.device) / WORKER_BYTES, 1024)))
    # How long a search without a limit takes shows when it has taken long.
    after = START_SECONDS if math.isinf(seconds) else 0.0
    return WorkerTrainer(task, count, after=after)  # one thread, also without workers: same bits


def gpus(device: torch.device) -> tuple[str, ...]:
    """GPUs that a device names: `cuda` all that are visible, `cuda:1` that one."""
    count = torch.cuda.device_count() if device.index is None else 0
    return tuple(f"{device.type}:{index}" for index in range(count)) or (str(device),)


def _travels(task: Task, build: Callable[[], nn.Module]) -> bool:
    """Whether other processes can train the runs."""
    with forked_rng(0):
        return task_form(task)[0] is not None and Forms(task).describe(build()) is not None


def _on_ray(task: Task, jobs: JobSettings) -> Trainer:
    """Workers on a cluster; this process trains only what they cannot."""
    form, note = task_form(task)
    if form is None:
        raise EsperError(f"on={jobs.on!r}: {note}; leave on= out")
    jobs.check()
    send_token()
    from esper.growing.trainers.ray_transport import RayTransport

    transport = RayTransport(task, jobs)
    count = jobs.processes if jobs.processes > 1 else max(1, transport.cpus)
    return WorkerTrainer(task, count, trains=False, transport=transport)
