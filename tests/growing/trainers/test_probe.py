"""The speed of networks, by training them for a moment."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import pytest
from torch import nn

from esper.growing.runs import How, Recipe
from esper.growing.trainers.job import Job, Outcome, Running, Tick
from esper.growing.trainers.probe import BATCHES, MAX_SECONDS, batch_seconds


class Room:
    """Trains so many jobs at a time; the first batch of each takes longer."""

    cores = 1

    def __init__(self, at_once: int, each: Sequence[float], first: float = 3.0) -> None:
        self.at_once, self.each, self.first = at_once, each, first
        self.now, self.begun = 0.0, list[Job]()

    def train(self, jobs: Iterator[Job], tick: Tick) -> Iterator[Outcome]:
        waiting, running, stopped = list(jobs), list[tuple[Job, float]](), False
        while (waiting or running) and not stopped:
            while waiting and len(running) < self.at_once:
                running.append((waiting.pop(0), self.now))
                self.begun.append(running[-1][0])
            self.now += 0.05
            stopped = tick(
                [Running(j.number, self._at(j, t), j.recipe.batches) for j, t in running]
            )
            for job, began in list(running):
                if stopped or self._at(job, began) == job.recipe.batches:
                    running.remove((job, began))
                    yield Outcome(job.number, self._at(job, began), True, 0.5, 0.5, (),
                                  self.now - began, 0.0, How(), {})  # fmt: skip

    def _at(self, job: Job, began: float) -> int:
        spent = self.now - began - self.first
        return max(0, min(job.recipe.batches, int(spent / self.each[job.number] + 1e-9) + 1))

    def close(self) -> None: ...


def jobs(count: int, batches: int = 10_000) -> list[Job]:
    recipe = Recipe("adamw", 0.1, 0.0, 1.0, 8, batches)
    build: Callable[[], nn.Module] = lambda: nn.Linear(1, 1)  # noqa: E731
    return [Job(7, build, recipe, seed) for seed in range(count)]


@pytest.mark.parametrize("each", [(0.05,), (0.4,), (0.1, 0.2, 0.75)])
def test_all_are_timed_beside_each_other_after_their_first_batches(each):
    room = Room(4, each)
    found = batch_seconds(room, jobs(len(each)), seconds=2.0, now=lambda: room.now)
    assert found == pytest.approx(each, rel=0.1)
    assert room.now < 3.0 + 2.0 + 4 * max(each)
    assert all(job.checkpoint is None and not job.judged for job in room.begun)


def test_what_finds_no_room_is_not_waited_for_and_not_known():
    room = Room(1, (0.1, 0.1))
    first, second = batch_seconds(room, jobs(2), seconds=0.5, now=lambda: room.now)
    assert first == pytest.approx(0.1, rel=0.1)
    assert math.isnan(second)
    assert room.now < 3.2 + MAX_SECONDS + 0.2


def test_a_run_that_ends_before_is_timed_as_a_whole():
    room = Room(1, (0.1,), first=0.0)
    (found,) = batch_seconds(room, jobs(1, 4), seconds=2.0, now=lambda: room.now)
    assert found == pytest.approx(0.1, rel=0.3)


def test_ranks_stop_at_the_same_batch():
    room = Room(1, (0.1,), first=0.0)
    batch_seconds(room, jobs(1), together=True, now=lambda: room.now)
    assert room.begun[0].recipe.batches == BATCHES
    assert room.now == pytest.approx(0.1 * (BATCHES - 1), abs=0.1)
