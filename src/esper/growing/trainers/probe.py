"""How long a batch of a network takes, by training it for a moment."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from esper.growing.trainers.job import Job, Outcome, Running, Trainer, untrainable

BATCHES: Final = 5
"""Of a probe that several ranks make together: none may stop before the others."""
SECONDS: Final = 0.25
MAX_SECONDS: Final = 5.0
"""After so many the networks that have not begun are not waited for."""
FIRST: Final = 2
"""Batches after which a network is timed: the first ones are slower."""


def batch_seconds(
    trainer: Trainer,
    jobs: Sequence[Job],
    together: bool = False,
    seconds: float = SECONDS,
    now: Callable[[], float] = time.monotonic,
    needed: bool = False,
) -> list[float]:
    """Seconds of a batch of each network, after the first ones, while all of them train.

    NaN: it was not trained, as there is no room for all at a time, or none for it; `needed`: that
    is an error.
    together: other ranks train them, too.
    seconds: how long to look, at least.
    """
    probes = [
        replace(job, number=number, checkpoint=None, judged=False)
        for number, job in enumerate(jobs)
    ]
    if together:
        probes = [
            replace(job, recipe=replace(job.recipe, batches=min(job.recipe.batches, BATCHES)))
            for job in probes
        ]
    times: dict[int, list[tuple[float, int]]] = {job.number: [] for job in probes}

    def look(running: Sequence[Running]) -> bool:
        for one in running:
            seen = times[one.number]
            # Between two batches nothing is learnt.
            if one.trained >= (seen[-1][1] + 1 if seen else FIRST):
                seen.append((now(), one.trained))
        looked = [_looked(seen) for seen in times.values()]
        return not together and (min(looked) > seconds or max(looked) > MAX_SECONDS)

    found = {one.number: one for one in trainer.train(iter(probes), look)}
    for one in found.values():
        if needed and one.failed:
            raise untrainable(probes[one.number].recipe.batch_size, one.failed)
    return [_each(found.get(job.number), job, times[job.number]) for job in probes]


def _looked(seen: Sequence[tuple[float, int]]) -> float:
    """For how long a network was seen to train."""
    return seen[-1][0] - seen[0][0] if seen else 0.0


def _each(found: Outcome | None, job: Job, seen: Sequence[tuple[float, int]]) -> float:
    if found is None:
        return math.nan
    if found.trained == job.recipe.batches or not _looked(seen):
        return found.seconds / found.trained if found.trained else math.nan
    return _looked(seen) / (seen[-1][1] - seen[0][1])
