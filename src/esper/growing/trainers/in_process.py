"""The trainer of one process."""

from __future__ import annotations

from esper.growing.trainers.eager import EagerTrainer
from esper.growing.trainers.job import Trainer
from esper.growing.trainers.task import Task


def process_trainer(task: Task) -> Trainer:
    """Many runs at a time on a GPU, one after the other on a CPU."""
    if task.device.type == "cuda":
        from esper.growing.trainers.captured import CapturedTrainer

        return CapturedTrainer(task)
    return EagerTrainer(task)
