"""A run that is judged on the way is in the table as it is then; its end replaces that."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace

import pytest
import torch

from esper.growing.clock import Clock
from esper.growing.folder import GrowFolder, read_weights, weights_path
from esper.growing.runs import Table
from esper.growing.search import JUDGED_EVERY, JUDGED_SHARE, judged
from search_support import CountingTrainer, Disk, Killed, make_search
from search_support import row as finished_row


class Telling(CountingTrainer):
    """Says of every run how it is after four batches; `score`: what it says."""

    def __init__(self, score: float = 0.05) -> None:
        super().__init__()
        self.early = score

    def train(self, jobs, tick):
        for job in jobs:
            short = replace(job, recipe=replace(job.recipe, batches=4), checkpoint=None)
            found = CountingTrainer()._run(short, lambda _: False)
            yield replace(found, under_way=True, score=self.early)
            outcome = self._run(job, tick)
            yield outcome
            if outcome.finite and outcome.trained < job.recipe.batches:
                return


@pytest.fixture(autouse=True)
def saved_often(monkeypatch):
    monkeypatch.setattr("esper.growing.search.TABLE_SECONDS", -1.0)


def searched(home, trainer) -> Disk:
    disk = Disk(home)
    assert make_search(disk, runs=5.0, trainer=trainer).run(Table())
    return disk


def test_the_table_is_that_of_runs_judged_at_their_end_alone(tmp_path):
    told, plain = (searched(tmp_path, each) for each in (Telling(), CountingTrainer()))
    assert told.read() == plain.read()
    assert {n: int(w["w"]) for n, w in told.weights.items()} == {
        n: int(w["w"]) for n, w in plain.weights.items()
    }


def test_what_was_judged_is_on_disk_with_its_weights_before_the_run_ends(tmp_path):
    disk, trainer, seen = Disk(tmp_path), Telling(), []
    run = trainer._run

    def looking(job, tick):
        seen.append((disk.read().rows[job.number], job.number in disk.weights))
        return run(job, tick)

    trainer._run = looking  # type: ignore[method-assign]
    make_search(disk, runs=5.0, trainer=trainer).run(Table())
    assert seen
    for row, has_weights in seen:
        assert (row.status, row.trained, row.score, row.saved) == ("cut", 4, 0.05, True)
        assert has_weights
        assert judged([row])


def test_a_kill_between_the_two_costs_no_bit(tmp_path):
    whole = searched(tmp_path, CountingTrainer()).read()
    ended, at = False, 0
    while not ended:
        disk = Disk(tmp_path, fails=at)
        try:
            ended = make_search(disk, runs=5.0, trainer=Telling()).run(Table())
        except Killed:
            disk.fails = -1
            assert make_search(disk, runs=5.0, trainer=Telling()).run(disk.read())
        assert disk.read() == whole, at
        at += 1
    assert at > 30


def test_the_clock_learns_from_whole_runs_alone(tmp_path):
    learnt = []
    disk, clock = Disk(tmp_path), Clock(lambda: 0.0, 0.0, math.inf, 0.0, 1.0)
    clock.learn = lambda row, _, trained, urgent: learnt.append((row.trained, trained))  # type: ignore[method-assign]
    search = make_search(disk, runs=5.0, trainer=Telling(), clock=clock, timed=False)
    search.run(Table())
    assert learnt == [(0, row.recipe.batches) for row in search.table.rows]


class SlowDisk(Disk):
    """Takes a fifth of a second for weights."""

    def save_weights(self, number, weights, under_way=False):
        time.sleep(0.2)
        super().save_weights(number, weights)


def test_what_takes_long_to_write_is_judged_less_often(tmp_path):
    clock = Clock(lambda: 0.0, 0.0, math.inf, 0.0, 1.0)
    first = finished_row(0, status="planned", trained=0)
    clock.begin(first, 100.0, 1)
    search = make_search(SlowDisk(tmp_path), clock=clock)
    search.table = Table((first,))
    found = CountingTrainer()._run(search._job(first), lambda _: False)
    search._record(replace(found, under_way=True))
    clock._judging = [0.1]
    assert search._job(first).every == pytest.approx(0.3 / JUDGED_SHARE, rel=0.2)


def test_nothing_waits_for_the_disk_while_a_run_is_under_way(tmp_path, monkeypatch):
    folder, synced = GrowFolder.create(tmp_path, "mine", 0), list[int]()
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(file) or sync(file))
    folder.save_weights(1, {"w": torch.ones(2)}, under_way=True)
    assert not synced
    folder.save_weights(1, {"w": torch.zeros(2)})
    assert synced
    assert torch.equal(read_weights(weights_path(folder.path, 1))["w"], torch.zeros(2))
    folder.close()


@pytest.mark.parametrize(
    ("judging", "seconds", "every"),
    [
        (None, 1000.0, 0.0),
        (0.01, 2.1 * JUDGED_EVERY, JUDGED_EVERY),
        (0.01, 1.9 * JUDGED_EVERY, 0.0),
        (1.0, 2.1 / JUDGED_SHARE, 1.0 / JUDGED_SHARE),
        (1.0, 1.9 / JUDGED_SHARE, 0.0),
    ],
)
def test_only_long_runs_are_judged_on_the_way_and_little_time_goes_to_it(
    tmp_path, judging, seconds, every
):
    clock = Clock(lambda: 0.0, 0.0, math.inf, 0.0, 1.0)
    first = finished_row(0, status="planned", trained=0)
    clock.begin(first, seconds / first.recipe.batches, 1)
    clock._judging = [] if judging is None else [judging]
    search = make_search(Disk(tmp_path), clock=clock)
    search.table = Table((first,))
    assert search._job(first).every == pytest.approx(every)
