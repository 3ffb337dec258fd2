"""A search: the table before and after every step, kills and Ctrl-C anywhere, honest budgets."""

from __future__ import annotations

import math
import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.growing.budget import Budget
from esper.growing.clock import REPORT_SECONDS, REPORT_SHARE, Clock
from esper.growing.runs import Row, Table
from esper.growing.search import Search, control_numbers, frontier_numbers, judged
from esper.growing.trainers.job import Job, Outcome, Running, Tick, failed_outcome
from esper.leyline.errors import EsperError
from search_support import (
    HOW,
    RECIPE,
    CountingTrainer,
    Disk,
    Killed,
    Watcher,
    make_search,
    quality,
    row,
)

SMALL = 5.0
"""Budget of the searches that are killed at every write."""


@pytest.fixture(autouse=True)
def saved_often(monkeypatch):
    """After every run: every one of these writes is one to be killed at."""
    monkeypatch.setattr("esper.growing.search.TABLE_SECONDS", -1.0)


def searched(home: Path, **settings) -> tuple[Search, Disk]:
    disk = Disk(home)
    search = make_search(disk, **settings)
    assert search.run(Table())
    return search, disk


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Search, Disk]:
    return searched(tmp_path_factory.mktemp("whole"))


def results(disk: Disk) -> tuple[Table, dict[int, int]]:
    return disk.read(), {number: int(w["w"]) for number, w in disk.weights.items()}


# ---- the table -----------------------------------------------------------------------------------


def test_the_model_as_given_is_trained_first(tmp_path):
    trainer = CountingTrainer()
    searched(tmp_path, trainer=trainer)
    own = RECIPE.batches
    assert trainer.trained[:own] == [(0, batch) for batch in range(own)]


def test_the_compute_of_all_runs_is_within_the_budget_and_adds_up(whole):
    search, disk = whole
    rows = disk.read().rows
    spent = sum(one.cost * one.trained for one in rows) / RECIPE.batches
    assert spent == pytest.approx(search.runs)
    assert 0.9 * 12.0 < spent <= 12.0


@settings(max_examples=15)
@given(runs=st.floats(0.3, 40.0), seed=st.integers(0, 5))
def test_no_budget_is_exceeded_but_for_the_model_itself(tmp_path_factory, runs, seed):
    home = tmp_path_factory.mktemp("budget")
    search, _ = searched(home, runs=runs, seed=seed)
    assert search.runs <= max(1.0, runs) * (1 + 1e-6)
    assert search.table.rows[0].status == "finished"


def test_the_table_is_saved_before_a_rung_and_after_every_run(tmp_path):
    disk = Disk(tmp_path)
    seen: list[tuple[int, list[str]]] = []

    class Looking(CountingTrainer):
        def train(self, jobs, tick):
            seen.append((len(disk.weights), [one.status for one in disk.read().rows]))
            for outcome in super().train(jobs, tick):
                yield outcome
                assert disk.read().rows[outcome.number].status == "finished"
                assert outcome.number in disk.weights

    search = make_search(disk, trainer=Looking())
    search.run(Table())
    assert seen[0] == (0, ["planned"])
    assert all("planned" in statuses for _, statuses in seen)
    assert disk.read() == search.table


def test_it_says_why_it_is_over(tmp_path, whole):
    assert whole[0].table.ended == "the budget is spent, or nothing new is left to try"
    stuck, _ = searched(
        tmp_path,
        runs=2000.0,
        trainer=CountingTrainer(lambda one: quality(one) if one.rung < 4 else 0.2),
    )
    assert stuck.table.ended == "nothing improved in 2 rungs"


def test_a_search_that_is_over_stays_as_it_is(whole):
    _, disk = whole
    before, trainer = results(disk), CountingTrainer()
    assert make_search(disk, trainer=trainer).run(disk.read())
    assert trainer.trained == []
    assert results(disk) == before


def test_a_larger_budget_resumes_from_there(tmp_path):
    _, disk = searched(tmp_path, runs=4.0)
    known, trainer = disk.read().rows, CountingTrainer()
    make_search(disk, runs=9.0, trainer=trainer).run(disk.read())
    done = {one.number for one in known if one.status == "finished"}
    assert not done & {number for number, _ in trainer.trained}
    assert len(disk.read().rows) > len(known)


def test_weights_are_kept_of_what_can_be_returned_alone(whole):
    search, disk = whole
    rows = search.table.rows
    kept = frontier_numbers(rows) | control_numbers(rows)
    assert set(disk.weights) == kept == {one.number for one in rows if one.saved}
    assert len(kept) < len(rows)
    assert not list(disk.home.iterdir()), "no checkpoint is left"


def test_a_run_that_diverges_costs_nothing_but_itself(tmp_path):
    def score(one: Row) -> float:
        return math.nan if one.recipe.lr == 0.03 else quality(one)

    search, _ = searched(tmp_path, trainer=CountingTrainer(score))
    lost = [one for one in search.table.rows if one.recipe.lr == 0.03]
    assert lost
    assert all(one.status == "finished" and one.diverged for one in lost)
    assert not {one.number for one in lost} & frontier_numbers(search.table.rows)


class Small(CountingTrainer):
    """A machine for small networks."""

    def __init__(self, fits: Callable[[Row], bool]) -> None:
        super().__init__()
        self.fits, self.refused = fits, list[Row]()

    def _run(self, job: Job, tick: Tick) -> Outcome:
        _, made = job.build()
        if self.fits(made):
            return super()._run(job, tick)
        self.refused.append(made)
        return failed_outcome(job, torch.device("cpu"), "out of memory")


@pytest.mark.parametrize("limit", [math.inf, 120.0])
def test_a_network_that_cannot_be_trained_costs_one_try_and_larger_ones_are_left_out(
    tmp_path, limit
):
    trainer, watcher = Small(lambda made: made.params < 200), Watcher()
    clock = Clock(lambda: len(trainer.trained) / 10, 0.0, limit, 0.0, 1.0)
    search, disk = searched(tmp_path, trainer=trainer, watcher=watcher, clock=clock)
    tried = [(one.variant, one.topology, one.cost) for one in trainer.refused]
    assert len(set(tried)) == len(tried) in range(1, 6)
    lost = [search.table.rows[one.number] for one in trainer.refused]
    assert {(one.status, one.diverged, one.how.note) for one in lost} == {
        ("finished", True, "out of memory")
    }
    assert watcher.said == [
        f"run {one.number} cannot be trained: out of memory; the search goes on without it"
        for one in lost
    ]
    trained = [one for one in search.table.rows if one.trained]
    assert len(trained) > 10
    assert all(one.params < 200 for one in trained)
    assert math.isfinite(limit) or 0.9 * 12.0 < search.runs <= 12.0
    assert set(disk.weights) == {one.number for one in search.table.rows if one.saved}
    again = Small(lambda made: made.params < 200)
    assert make_search(disk, runs=30.0, trainer=again).run(disk.read())
    assert again.refused == [], "a resume knows"


def test_without_memory_for_anything_else_the_search_ends(tmp_path):
    trainer = Small(lambda made: made.number == 0)
    search, _ = searched(tmp_path, trainer=trainer)
    assert [one.number for one in search.table.rows if one.trained] == [0]
    assert len(trainer.refused) < 100


def test_the_model_itself_has_to_be_trained(tmp_path):
    with pytest.raises(EsperError, match=r"your model cannot be trained with batches of \d+: out"):
        make_search(Disk(tmp_path), trainer=Small(lambda made: False)).run(Table())


def test_a_run_that_was_judged_before_it_failed_stays_as_it_was_then(tmp_path):
    watcher, disk = Watcher(), Disk(tmp_path)
    watcher.on_batch = interrupt_after(40)
    make_search(disk, watcher=watcher).run(Table())
    (cut,) = (one for one in disk.read().rows if one.status == "cut")
    trainer = Small(lambda made: made.number != cut.number)
    make_search(disk, trainer=trainer).run(disk.read())
    now = disk.read().rows[cut.number]
    assert (now.status, now.score, now.trained, now.diverged) == (
        "finished", cut.score, cut.trained, False,
    )  # fmt: skip
    assert len(trainer.refused) == 1


# ---- kills ---------------------------------------------------------------------------------------


def killed(home: Path, at: int) -> Disk | None:
    """What is on disk after a kill at a write; None: it was over by then."""
    disk = Disk(home, fails=at)
    try:
        make_search(disk, runs=SMALL).run(Table())
    except Killed:
        return disk
    return None


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> tuple[Table, dict[int, int]]:
    return results(searched(tmp_path_factory.mktemp("small"), runs=SMALL)[1])


@pytest.mark.parametrize("seconds", [-1.0, math.inf], ids=["every run", "every rung"])
def test_a_kill_at_any_write_costs_no_bit(small, tmp_path, monkeypatch, seconds):
    """`seconds`: between two writes of the table: after every run, or after every rung alone."""
    monkeypatch.setattr("esper.growing.search.TABLE_SECONDS", seconds)
    at = 0
    while True:
        home = tmp_path / str(at)
        home.mkdir()
        disk = killed(home, at)
        if disk is None:
            break
        assert make_search(disk, runs=SMALL).run(disk.read())
        assert results(disk) == small, at
        at += 1
    assert at > 15


class Saving(CountingTrainer):
    """Saves every run half way."""

    def _run(self, job: Job, tick: Tick) -> Outcome:
        if job.checkpoint is not None and not job.checkpoint.exists():
            half = job.recipe.batches // 2 // 4 * 4
            super()._run(job, lambda running: running[0].trained >= half)
        return super()._run(job, tick)


@pytest.mark.parametrize("seconds", [-1.0, math.inf], ids=["every run", "every rung"])
def test_a_checkpoint_stays_until_the_table_says_that_its_run_is_over(
    small, tmp_path, monkeypatch, seconds
):
    monkeypatch.setattr("esper.growing.search.TABLE_SECONDS", seconds)
    at, dead = 0, True
    while dead:
        home = tmp_path / str(at)
        home.mkdir()
        disk, first, second = Disk(home, fails=at), Saving(), Saving()
        try:
            make_search(disk, runs=SMALL, trainer=first).run(Table())
            dead = False
        except Killed:
            make_search(disk, runs=SMALL, trainer=second).run(disk.read())
        half = {one.number: one.recipe.batches // 2 // 4 * 4 for one in disk.read().rows}
        times = Counter(first.trained + second.trained)
        assert all(one == 1 or batch >= half[n] for (n, batch), one in times.items()), at
        assert results(disk) == small, at
        assert not list(home.iterdir()), "no checkpoint is left"
        at += 1


# ---- Ctrl-C --------------------------------------------------------------------------------------


def interrupt_after(count: int) -> Callable[[Search], None]:
    """Presses Ctrl-C at a tick."""
    ticks = iter(range(10**9))

    def press(search: Search) -> None:
        if next(ticks) == count:
            os.kill(os.getpid(), signal.SIGINT)

    return press


@pytest.mark.parametrize("count", [0, 5, 26, 27, 30, 60, 100, 150])
def test_ctrl_c_marks_the_run_cut_and_no_batch_is_trained_twice(whole, tmp_path, count):
    watcher, disk, trainer = Watcher(), Disk(tmp_path), CountingTrainer()
    watcher.on_batch = interrupt_after(count)
    before = signal.getsignal(signal.SIGINT)
    early = make_search(disk, watcher=watcher, trainer=trainer)
    assert not early.run(Table())
    assert signal.getsignal(signal.SIGINT) is before
    assert disk.read().ended == ""
    cut = [one for one in disk.read().rows if one.status == "cut"]
    assert [one.trained % 4 for one in cut] in ([], [0])
    assert all(0 < one.trained < one.recipe.batches and one.saved for one in cut)
    assert judged(disk.read().rows)
    assert make_search(disk, trainer=trainer).run(disk.read())
    twice = [key for key, times in Counter(trainer.trained).items() if times > 1]
    assert twice == []
    assert results(disk) == results(whole[1])
    assert not list(disk.home.iterdir()), "no checkpoint is left"


def test_a_cut_run_makes_no_weights_dispensable(tmp_path):
    """Half way it looks better than it ends."""

    class Flattering(CountingTrainer):
        def _run(self, job, tick):
            found = super()._run(job, tick)
            return replace(found, score=0.99) if found.trained < job.recipe.batches else found

    watcher, disk = Watcher(), Disk(tmp_path)
    watcher.on_batch = interrupt_after(40)
    make_search(disk, watcher=watcher, trainer=Flattering()).run(Table())
    (cut,) = (one.number for one in disk.read().rows if one.status == "cut")
    assert frontier_numbers(disk.read().rows) == {cut}, "the narrowest at another rate"
    search = make_search(disk, runs=1.2)
    search.run(disk.read())
    assert len(frontier_numbers(search.table.rows)) > 2
    assert frontier_numbers(search.table.rows) <= set(disk.weights)


def test_a_cut_run_of_the_model_leaves_the_weights_of_the_best_that_ended(tmp_path):
    search = make_search(Disk(tmp_path))
    narrow = {"origin": "width", "variant": 1, "params": 10}
    given = [row(0, 0.5, saved=True), row(1, 0.6, saved=True),
             row(2, 0.7, status="cut", trained=3, saved=True)]  # fmt: skip
    search.table = Table((*given, row(3, 0.9, saved=True, **narrow)))
    assert control_numbers(search.table.rows) == {2}
    search._forget()
    assert [one.saved for one in search.table.rows] == [False, True, True, True]


def test_the_second_ctrl_c_ends_it_at_once(tmp_path):
    watcher, disk = Watcher(), Disk(tmp_path)
    watcher.on_batch = lambda search: os.kill(os.getpid(), signal.SIGINT)

    class Deaf(CountingTrainer):
        def train(self, jobs, tick):
            while True:
                tick([])
                yield from ()

    with pytest.raises(KeyboardInterrupt):
        make_search(disk, watcher=watcher, trainer=Deaf()).run(Table())
    assert make_search(disk).run(disk.read())


def test_a_cut_run_with_outputs_that_are_not_finite_yet_resumes(tmp_path):
    disk = Disk(tmp_path)

    class Early(CountingTrainer):
        """BatchNorm in eval mode, a few batches in."""

        def train(self, jobs, tick):
            job = next(jobs)
            yield Outcome(job.number, 4, False, math.nan, math.inf, ((4, 0.7),), 1.0, 0.1, HOW,
                          {"w": torch.tensor(3)})  # fmt: skip
            os.kill(os.getpid(), signal.SIGINT)
            tick([])

    make_search(disk, trainer=Early()).run(Table())
    assert disk.read().rows[0].status == "cut"
    assert judged(disk.read().rows) == []
    trainer = CountingTrainer()
    make_search(disk, trainer=trainer).run(disk.read())
    assert trainer.trained[0][0] == 0


# ---- rungs ---------------------------------------------------------------------------------------


def test_every_rung_is_reported_once_after_it_is_saved(tmp_path):
    watcher = Watcher()
    search, _ = searched(tmp_path, watcher=watcher)
    assert watcher.saved == watcher.rungs == list(range(search.table.rungs))


@pytest.mark.parametrize("rung", [0, 1, 3])
def test_what_on_round_raises_ends_the_search_which_resumes_after_that_rung(whole, tmp_path, rung):
    watcher, disk, trainer = Watcher(), Disk(tmp_path), CountingTrainer()
    watcher.fails_at = rung
    with pytest.raises(ZeroDivisionError):
        make_search(disk, watcher=watcher, trainer=trainer).run(Table())
    watcher.fails_at = None
    make_search(disk, watcher=watcher, trainer=trainer).run(disk.read())
    assert watcher.saved == list(range(disk.read().rungs))
    assert max(Counter(trainer.trained).values()) == 1
    assert results(disk) == results(whole[1])


def test_an_interrupted_rung_is_reported_when_it_is_whole(tmp_path):
    watcher, disk = Watcher(), Disk(tmp_path)
    watcher.on_batch = interrupt_after(30)
    make_search(disk, watcher=watcher).run(Table())
    assert watcher.saved == []
    watcher.on_batch = None
    make_search(disk, watcher=watcher).run(disk.read())
    assert watcher.saved == list(range(disk.read().rungs))


# ---- growth --------------------------------------------------------------------------------------


def test_a_grown_network_starts_from_its_parents_weights(tmp_path):
    starts: dict[int, int] = {}

    class Noting(CountingTrainer):
        def _run(self, job, tick):
            value, made = job.build()
            if made.start is not None:
                starts[made.number] = value - int(disk.weights[made.start]["w"])
            return super()._run(job, tick)

    disk = Disk(tmp_path)
    search = make_search(disk, runs=400.0, trainer=Noting())
    search.run(Table())
    grown = [one for one in search.table.rows if one.start is not None]
    assert grown
    assert starts == {one.number: 0 for one in grown}


def test_weights_that_an_open_run_starts_from_are_kept(tmp_path):
    """Though others are better for their size by now."""
    disk = Disk(tmp_path, weights={number: {"w": torch.tensor(number)} for number in range(3)})
    parent = row(1, 0.5, origin="seeds", topology=("mlp", ""), params=140)
    better = row(2, 0.9, origin="width", variant=1, params=50)
    other = replace(better, number=3, status="planned", trained=0, score=math.nan, saved=False)
    grown = replace(other, number=4, variant=0, start=1, topology=("mlp", "norm"), origin="grown")
    watcher = Watcher()
    watcher.on_batch = interrupt_after(0)
    early = make_search(disk, runs=30.0, watcher=watcher)
    early.run(Table((row(0, 0.4), parent, better, other, grown)))
    assert [one.status for one in early.table.rows[3:]] == ["cut", "planned"]
    assert 1 in disk.weights
    search = make_search(disk, runs=30.0)
    search.run(disk.read())
    assert search.table.rows[4].status == "finished"
    assert 1 not in disk.weights, "not needed any more"


# ---- time ----------------------------------------------------------------------------------------


class Ticking(CountingTrainer):
    """Every batch of the model as given takes a tenth of a second, on a clock of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def _run(self, job, tick):
        _, made = job.build()

        def ticked(running):
            self.now += 0.4 * made.cost
            return tick(running)

        began = self.now
        return replace(super()._run(job, ticked), seconds=self.now - began)


@pytest.mark.parametrize("limit", [5.0, 30.0, 100.0, 400.0])
def test_a_time_limit_is_kept_and_used(tmp_path, limit):
    trainer = Ticking()
    clock = Clock(lambda: trainer.now, 0.0, limit, 0.0, 1.0)
    search, _ = searched(tmp_path, runs=math.inf, trainer=trainer, clock=clock)
    assert trainer.now <= limit + 0.4, "a batch of the widest network"
    assert search.table.ended
    assert trainer.now >= 0.75 * limit or "nothing" in search.table.ended


class Hurried(Ticking):
    """Notes the jobs that it gets."""

    def __init__(self, prioritises: bool) -> None:
        super().__init__()
        self.prioritises = prioritises
        self.rungs: list[list[Job]] = []

    def train(self, jobs, tick):
        self.rungs.append([])
        for job in jobs:
            self.rungs[-1].append(job)
            yield self._run(job, tick)


class Noting(Clock):
    """Notes the runs that others waited for."""

    waited: set[int]

    def learn(self, row, outcome, trained, urgent=False):
        self.waited = getattr(self, "waited", set()) | ({row.number} if urgent else set())
        super().learn(row, outcome, trained, urgent)


@pytest.mark.parametrize("prioritises", [True, False])
def test_the_best_networks_are_urgent_where_others_can_wait_for_them(tmp_path, prioritises):
    trainer = Hurried(prioritises)
    clock = Noting(lambda: trainer.now, 0.0, 400.0, 0.0, 1.0)
    search, _ = searched(tmp_path, runs=math.inf, trainer=trainer, clock=clock, early=prioritises)
    rows = search.table.rows
    best = {one.number for one in rows if one.purpose == "best"}
    assert min(one.rung for one in rows if one.number in best) == (1 if prioritises else 2)
    urgent = {job.number for jobs in trainer.rungs for job in jobs if job.urgent}
    assert urgent == clock.waited == (best if prioritises else set())


@pytest.mark.parametrize("prioritises", [True, False])
def test_urgent_runs_come_first_then_long_ones(tmp_path, prioritises):
    trainer = Hurried(prioritises)
    lengths = {1: ("neighbour", 5), 2: ("best", 10), 3: ("widest", 20)}
    planned = [
        row(number, status="planned", trained=0, saved=False, score=math.nan, purpose=purpose,
            recipe=replace(RECIPE, batches=batches))
        for number, (purpose, batches) in lengths.items()
    ]  # fmt: skip
    search = make_search(Disk(tmp_path), runs=1.5, trainer=trainer)
    search.clock.learn_speed(row(), 0.1)
    search.run(Table((row(), *planned)))
    first = [job.number for job in trainer.rungs[0]]
    assert first == ([2, 3, 1] if prioritises else [3, 2, 1])


def test_a_run_says_when_it_was_judged_on_the_clock_of_all_sessions(tmp_path):
    trainer = Ticking()
    clock = Clock(lambda: trainer.now, 0.0, 70.0, 40.0, 1.0)
    _, disk = searched(tmp_path, runs=math.inf, trainer=trainer, clock=clock)
    rows = sorted(disk.read().rows, key=lambda one: one.at)
    ends = accumulate((one.seconds for one in rows), initial=40.0)
    assert [one.at for one in rows] == pytest.approx([*ends][1:])
    assert len(rows) > 3


def test_no_run_starts_that_cannot_end_in_time(tmp_path):
    """Each is looked at when its turn comes, not when the rung was proposed."""
    started = []

    class Looking(Ticking):
        def _run(self, job, tick):
            now = search.table.rows[job.number]
            started.append(0.9 * clock.predict(now) <= clock.left)
            return super()._run(job, tick)

    trainer = Looking()
    clock = Clock(lambda: trainer.now, 0.0, 60.0, 0.0, 1.0)
    clock.learn_speed(row(0), 0.1)
    search = make_search(Disk(tmp_path), runs=math.inf, trainer=trainer, clock=clock)
    recipes = [replace(RECIPE, lr=0.001 * number) for number in range(1, 12)]
    planned = [row(number, status="planned", trained=0, recipe=recipe)
               for number, recipe in enumerate(recipes, 1)]  # fmt: skip
    search.run(Table((row(0), *planned)))
    assert len(started) > 3
    assert all(started)


def test_time_that_is_over_judges_what_there_is_and_a_resume_trains_nothing(tmp_path):
    trainer = Ticking()
    clock = Clock(lambda: trainer.now, 0.0, 0.9, 0.0, 1.0)
    search, disk = searched(tmp_path, runs=math.inf, trainer=trainer, clock=clock)
    (cut,) = search.table.rows
    assert cut.status == "cut"
    assert search.table.ended == "the time is over"
    later = Clock(lambda: trainer.now, trainer.now, 0.9, search.table.seconds, 1.0)
    count = len(trainer.trained)
    assert make_search(disk, trainer=trainer, runs=math.inf, clock=later).run(disk.read())
    assert len(trainer.trained) == count


def test_the_last_rung_is_reported_though_the_time_is_over(tmp_path):
    trainer, watcher = Ticking(), Watcher()
    clock = Clock(lambda: trainer.now, 0.0, 5.0, 0.0, 1.0)
    search, _ = searched(tmp_path, runs=math.inf, trainer=trainer, clock=clock, watcher=watcher)
    assert search.table.ended == "the time is over"
    assert watcher.saved == [0]


class Pair(Ticking):
    """Trains two runs at a time, each as fast as if it were alone, or one with both cores."""

    at_once = 2
    speedup = 1.0
    before_first = 0
    """Batches for which there would be time before the first one."""

    def train(self, jobs, tick):
        running: list[list] = []
        while True:
            while len(running) < 2 and (job := next(jobs, None)) is not None:
                running.append([job, -self.before_first, self.now])
            if not running:
                return
            self.now += 0.1
            for held in list(running):
                speed = self.speedup if held[0].threads else 1.0
                done = held[1] + speed / held[0].build()[1].cost
                held[1] = min(done, held[0].recipe.batches)
            stopped = tick(
                [Running(j.number, max(0, int(at)), j.recipe.batches) for j, at, _ in running]
            )
            for held in list(running):
                job, at, began = held[0], max(0, int(held[1])), held[2]
                if at == job.recipe.batches or stopped:
                    running.remove(held)
                    value, made = job.build()
                    weights = {"w": torch.tensor(value)}
                    yield Outcome(job.number, at, True, self.score(made), 0.1, ((at, 0.1),),
                                  self.now - began, 0.0, HOW, weights)  # fmt: skip
            if stopped:
                return


@pytest.mark.parametrize("runs", [1.5, 3.0, 12.0])
def test_the_table_is_the_same_however_many_train_at_a_time(tmp_path_factory, runs):
    tables = [
        searched(tmp_path_factory.mktemp("at once"), runs=runs, trainer=trainer)[0].table
        for trainer in (CountingTrainer(), Pair())
    ]
    one, other = ([(r.number, r.rung, r.key) for r in table.rows] for table in tables)
    assert one == other


@pytest.mark.parametrize("limit", [30.0, 60.0, 240.0])
def test_no_process_waits_for_the_other(tmp_path, limit):
    trainer = Pair()
    clock = Clock(lambda: trainer.now, 0.0, limit, 0.0, 1.0)
    clock.begin(row(0), 0.1, 2)
    search, _ = searched(tmp_path, runs=math.inf, trainer=trainer, clock=clock)
    rows = search.table.rows
    assert clock.judged == len(frontier_numbers(rows) | control_numbers(rows))
    assert [one.number for one in rows] == list(range(len(rows)))
    busy = sum(one.trained * one.cost for one in rows) * 0.1 / (2 * trainer.now)
    assert busy > 0.8


@pytest.mark.parametrize("limit", [28.0, 60.0, 72.0])
def test_the_last_runs_are_as_long_as_there_is_time(tmp_path, limit):
    """Rather than time that is left over, for which no full run is short enough."""
    trainer = Pair()
    clock = Clock(lambda: trainer.now, 0.0, limit, 0.0, 1.0)
    clock.begin(row(0), 0.1, 2)
    search, _ = searched(tmp_path, runs=math.inf, trainer=trainer, clock=clock, longer=3)
    took = trainer.now + REPORT_SECONDS + REPORT_SHARE * limit
    assert min(0.95 * limit, limit - 3.0) <= took <= limit + 0.2
    assert max(one.recipe.batches for one in search.table.rows) <= 3 * RECIPE.batches


@pytest.mark.parametrize("limit", [20.0, 50.0, 95.0])
def test_no_run_is_proposed_for_which_there_is_no_time(tmp_path, limit):
    trainer = Pair()
    clock = Clock(lambda: trainer.now, 0.0, limit, 0.0, 1.0)
    clock.begin(row(0), 0.1, 2)
    search, _ = searched(tmp_path, runs=math.inf, trainer=trainer, clock=clock, longer=3)
    left = [one for one in search.table.rows if not one.ended]
    assert len(left) <= 1, "time is not known to a tenth of a second"


def test_no_run_is_longer_than_the_user_wants(tmp_path):
    trainer = Pair()
    clock = Clock(lambda: trainer.now, 0.0, 240.0, 0.0, 1.0)
    clock.begin(row(0), 0.1, 2)
    search, _ = searched(tmp_path, runs=math.inf, trainer=trainer, clock=clock, longer=1)
    assert max(one.recipe.batches for one in search.table.rows) == RECIPE.batches


def timed_search(home: Path, limit: float, **settings) -> Search:
    """A search by two processes; the model as given takes a tenth of a second for a batch."""
    trainer = Pair()
    clock = Clock(lambda: trainer.now, 0.0, limit, 0.0, 1.0)
    clock.begin(row(0), 0.1, 2)
    return searched(home, runs=math.inf, trainer=trainer, clock=clock, **settings)[0]


@pytest.mark.parametrize("limit", [60.0, 240.0, 1000.0])
def test_the_last_long_runs_get_more_than_a_third_of_the_time(tmp_path, limit):
    """However short it is: a full run of the widest network takes 43 s."""
    rows = timed_search(tmp_path, limit).table.rows
    wide = [one for one in rows if one.params >= 400]
    longest = max(one.recipe.batches for one in wide)
    long = [one for one in wide if one.recipe.batches > 0.7 * longest]
    spent = sum(one.trained * one.cost for one in rows)
    assert sum(one.trained * one.cost for one in long) > spent / 3
    assert all(one.status == "finished" for one in long)
    best = max(rows, key=lambda one: one.merit)
    assert best in long


def test_every_run_says_why_it_was_proposed_and_from_which(whole, tmp_path):
    first = {"first", "opening"}
    for rows in (whole[0].table.rows, timed_search(tmp_path, 60.0).table.rows):
        for one in rows:
            assert (one.purpose in first) == (one.parent is None) == (one.rung == 0), one
            assert one.parent is None or one.parent < one.number
    purposes = {one.purpose for one in whole[0].table.rows}
    assert purposes >= first | {"survivor", "best", "neighbour"}
    assert "finale" in {one.purpose for one in rows}


@pytest.mark.parametrize("limit", [100.0, 110.0])
def test_the_last_long_runs_are_as_long_as_their_speed_allows_that_short_ones_do_not_show(
    tmp_path, limit
):
    """Short runs take nearly twice as long as their batches."""
    trainer = Pair()
    trainer.before_first = 10
    clock = Clock(lambda: trainer.now, 0.0, limit, 0.0, 1.0)
    clock.begin(row(0), 0.1, 2)
    rows = searched(tmp_path, runs=math.inf, trainer=trainer, clock=clock)[0].table.rows
    last = max(one.rung for one in rows if one.cost > 3)
    long = [one for one in rows if one.rung == last and one.cost > 3]
    longest = max(one.seconds for one in long)
    began = trainer.now - longest
    assert longest > 0.9 * (limit - REPORT_SECONDS - REPORT_SHARE * limit - began)
    assert all(one.status == "finished" for one in long)


@pytest.mark.parametrize(("speedup", "threads"), [(1.8, 2), (1.3, 0)])
def test_the_last_long_run_has_all_cores_where_they_train_it_faster(tmp_path, speedup, threads):
    trainer = Pair()
    trainer.cores, trainer.speedup = 2, speedup
    clock = Clock(lambda: trainer.now, 0.0, 60.0, 0.0, 1.0)
    clock.begin(row(0), 0.1, 2)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("esper.growing.search.PROBE_SHARE", 0.05)  # a batch takes 0.2 s
        search, _ = searched(tmp_path, runs=math.inf, trainer=trainer, clock=clock)
    rows = search.table.rows
    longest = max(rows, key=lambda one: one.recipe.batches * one.cost)
    assert (longest.threads, longest.status) == (threads, "finished")
    assert trainer.now > 0.85 * 60
    assert {one.threads for one in rows if one is not longest} == {0}


def test_the_last_long_runs_keep_to_a_limit_on_compute_as_well(tmp_path):
    trainer = Pair()
    clock = Clock(lambda: trainer.now, 0.0, 240.0, 0.0, 1.0)
    clock.begin(row(0), 0.1, 2)
    search, _ = searched(tmp_path, runs=3.0, trainer=trainer, clock=clock)
    assert search.runs <= 3.0 * (1 + 1e-6)
    assert all(one.ended for one in search.table.rows), "none is planned that cannot be paid for"


def test_where_length_does_not_pay_the_time_goes_to_other_networks(tmp_path):
    flat = Pair()
    flat.score = lambda one: 0.5 + 0.0001 * one.params
    clock = Clock(lambda: flat.now, 0.0, 600.0, 0.0, 1.0)
    clock.begin(row(0), 0.1, 2)
    search, _ = searched(tmp_path, runs=math.inf, trainer=flat, clock=clock)
    assert max(one.recipe.batches for one in search.table.rows) == RECIPE.batches


def test_the_model_is_trained_for_a_third_of_a_full_run_however_short_the_time(tmp_path):
    for limit in (30.0, 60.0, 240.0):
        rows = timed_search(tmp_path, limit).table.rows
        given = [one for one in rows if one.origin == "given" and one.status == "finished"]
        assert max(one.recipe.batches for one in given) >= RECIPE.batches // 3


# ---- limits and choices --------------------------------------------------------------------------


def test_limits_of_a_budget():
    assert Budget().training_runs(1000.0) == 20.0
    assert Budget(host_runs=3).training_runs(1000.0) == 3
    assert Budget(minutes=3).training_runs(1000.0) == math.inf
    assert Budget(flops=2500).training_runs(1000.0) == 2.5
    assert Budget(flops=2500, host_runs=2).training_runs(1000.0) == 2


def test_the_control_is_the_best_run_of_the_model_as_given():
    rows = [
        row(0, 0.5),
        row(1, 0.7, status="cut"),
        row(2, 0.6),
        row(3, 0.9, origin="width", variant=1),
        row(4, 0.9, origin="seeds", topology=("mlp", "")),
        row(5, math.nan),
        row(6, 0.99, status="planned"),
    ]
    assert control_numbers(rows) == {1}, "cut, as a pick may be"
    assert control_numbers([rows[0], *rows[2:]]) == {2}
    assert control_numbers(rows[3:5]) == set()
    lower = [row(0, 0.5, lower_is_better=True), row(1, 0.4, lower_is_better=True)]
    assert control_numbers(lower) == {1}


def test_the_frontier_has_no_run_that_is_not_judged():
    rows = [
        row(0, 0.5, params=100),
        row(1, 0.6, params=90, diverged=True),
        row(2, math.nan, params=10),
        row(3, 0.7, params=200, status="cut"),
        row(4, 0.4, params=200),
        row(5, 0.9, params=5, status="planned"),
    ]
    assert frontier_numbers(rows) == {0, 3}
    assert frontier_numbers([]) == set()
