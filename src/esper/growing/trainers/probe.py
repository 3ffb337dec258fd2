"""How long a batch of a network takes, by training it for a moment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from esper.growing.trainers.job import Job, Running, Trainer

BATCHES: Final = 5
"""Of a probe that several ranks make together: none may stop before the others."""
SECONDS: Final = 0.25


def batch_seconds(
    trainer: Trainer, job: Job, together: bool = False, seconds: float = SECONDS
) -> float:
    """Seconds of a batch after the first ones.

    together: other ranks train it, too.
    seconds: how long to look, at least.
    """
    recipe = job.recipe
    if together:
        recipe = replace(recipe, batches=min(recipe.batches, BATCHES))
    times = list[tuple[float, int]]()

    def look(running: Sequence[Running]) -> bool:
        if running and running[0].trained >= 2:
            times.append((time.monotonic(), running[0].trained))
        if together or len(times) < 2:
            return False
        return times[-1][0] - times[0][0] > seconds and times[-1][1] > times[0][1]

    (found,) = trainer.train(iter([replace(job, recipe=recipe, judged=False)]), look)
    if found.trained == recipe.batches or len(times) < 2 or times[-1][1] == times[0][1]:
        return found.seconds / max(1, found.trained)
    return (times[-1][0] - times[0][0]) / (times[-1][1] - times[0][1])
