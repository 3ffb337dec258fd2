"""Which trainer a search uses."""

from __future__ import annotations

from esper.growing.ranks import Ranks, ShardRanks
from esper.growing.trainers.eager import EagerTrainer
from esper.growing.trainers.job import Trainer
from esper.growing.trainers.task import Task


def trainer_for(task: Task, seconds: float, ranks: Ranks) -> Trainer:
    """The trainer for a device; `seconds`: how long the search may take."""
    if isinstance(ranks, ShardRanks):
        from esper.growing.trainers.sharded import ShardedTrainer

        return ShardedTrainer(task, ranks)
    return EagerTrainer(task)
