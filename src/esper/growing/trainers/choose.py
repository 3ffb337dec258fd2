"""Which trainer a task gets."""

from __future__ import annotations

from esper.growing.trainers.captured import CapturedTrainer
from esper.growing.trainers.eager import EagerTrainer
from esper.growing.trainers.job import Trainer
from esper.growing.trainers.task import Task


def trainer_for(task: Task) -> Trainer:
    """Captured runs side by side on a GPU, one after the other on a CPU."""
    return CapturedTrainer(task) if task.device.type == "cuda" else EagerTrainer(task)
