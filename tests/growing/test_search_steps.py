"""The steps of a search, each by itself: shares of a budget, lengths, records, what is kept."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from esper.growing.budget import Budget
from esper.growing.clock import ENOUGH, REPORT_SECONDS, REPORT_SHARE, Clock
from esper.growing.runs import Purpose, Row, Table
from esper.growing.search import (
    FEW,
    MAX_FINALE,
    MAX_LEAST,
    MAX_REFUSED,
    MIN_FILL,
    SAFE,
    SAFE_UNTIMED,
    TABLE_SECONDS,
    Search,
    control_numbers,
    frontier_numbers,
    within,
)
from esper.growing.trainers.job import Outcome, Running
from search_support import HOW, RECIPE, CountingTrainer, Disk, make_search, row

LIMIT = 100.0
USABLE = LIMIT - REPORT_SECONDS - REPORT_SHARE * LIMIT
"""Seconds of the limit that runs may take."""
FULL = RECIPE.batches


class Timed:
    """A search with a clock that is set by hand; a batch of the model takes a tenth of a second."""

    def __init__(self, home: Path, *rows: Row, limit: float = LIMIT, parallel: int = 1,
                 runs: float = math.inf, **settings: Any) -> None:  # fmt: skip
        self.now, self.disk = 0.0, Disk(home)
        self.clock = Clock(lambda: self.now, 0.0, limit, 0.0, 1.0)
        self.clock.begin(row(0), 0.1, parallel)
        self.search: Search = make_search(self.disk, runs=runs, clock=self.clock, **settings)
        self.search.table = Table(rows)


def planned(number: int = 1, batches: int = FULL, **changes: Any) -> Row:
    recipe = replace(RECIPE, batches=batches)
    return row(number, math.nan, **{"status": "planned", "trained": 0, "recipe": recipe} | changes)


# ---- the budget ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("now", "spent"), [(0.0, 0.1), (5.0, 0.1), (49.0, 49 / USABLE)])
def test_what_is_left_is_the_lesser_share_of_compute_and_time(tmp_path, now, spent):
    made = Timed(tmp_path, row(0), runs=10.0)
    made.now = now
    assert made.search._left() == pytest.approx(1.0 - spent)
    still = Timed(tmp_path, row(0), runs=10.0, limit=math.inf)
    still.now = now
    assert still.search._left() == pytest.approx(0.9)


@pytest.mark.parametrize(("each", "seconds"), [(0.01, 0.54), (1.0, 54.0)])
def test_a_run_costs_its_larger_share_of_what_is_still_to_train(tmp_path, each, seconds):
    made = Timed(tmp_path, row(0), runs=10.0)
    half = row(1, status="cut", cost=2.0, trained=FULL // 2)
    made.clock.learn_speed(half, each)
    assert made.search._price(half) == pytest.approx(max(0.1, seconds / USABLE))


def test_a_run_starts_if_compute_and_time_suffice_and_goes_on_while_there_is_time(tmp_path):
    made = Timed(tmp_path, row(0), runs=2.0)
    affords = made.search._affords
    assert affords(planned())
    assert not affords(planned(cost=1.1))
    free = Timed(tmp_path, row(0)).search
    longest = int(10 * USABLE / ENOUGH)
    assert free._affords(planned(batches=longest))
    assert not free._affords(planned(batches=longest + 1))
    assert affords(planned(cost=9.0, status="cut", trained=4)), "it was begun"
    made.now = LIMIT
    assert not affords(planned())
    assert not affords(planned(status="cut", trained=4))
    assert affords(planned(0)), "the model itself, whatever it takes"


@pytest.mark.parametrize(
    ("count", "at_once", "each", "share"),
    [(1, 1, 0.1, SAFE), (2, 2, 0.1, SAFE), (2, 1, 0.1, SAFE_UNTIMED), (8, 9, 0.2, SAFE)],
)
def test_runs_that_fill_the_time_share_it(tmp_path, count, at_once, each, share):
    """Alone a batch takes a tenth of a second, beside three others a fourth of that each."""
    made = Timed(tmp_path, row(0), parallel=4)
    made.search.trainer.at_once = at_once
    assert made.search._fitting(count, row(0)) == int(share * USABLE / each)


# ---- proposals -----------------------------------------------------------------------------------


class Proposing:
    """Stands in for what a ladder proposes, and notes what it was asked."""

    def __init__(self, search: Search, *rows: Row) -> None:
        self.asked: list[tuple[Any, ...]] = []
        ladder: Any = search.ladder
        ladder.next_rung = lambda *given: self._note(given) or (list(rows), "nothing more")
        ladder.beside_first = lambda *given: self._note(given) or list(rows)
        ladder.filling = lambda *given: self._note(given) or []

    def _note(self, given: tuple[Any, ...]) -> None:
        self.asked.append(given)


@pytest.mark.parametrize(("parallel", "least"), [(1, 1), (3, 3), (9, MAX_LEAST)])
def test_a_rung_has_a_run_for_every_process_and_time_is_kept_for_the_refit(
    tmp_path, parallel, least
):
    made = Timed(tmp_path, row(0), row(1, math.nan, diverged=True), row(2), parallel=parallel)
    kept: list[list[int]] = []
    made.search._after = lambda rows: kept.append([one.number for one in rows]) or 7.0
    asked = Proposing(made.search, planned(3)).asked
    assert [one.number for one in made.search._propose()] == [3]
    assert asked[0][3] == least
    assert kept == [[0, 2, 3]], "of what is judged, and of what is proposed"
    assert made.clock.reserved == 7.0


def test_without_a_time_limit_a_rung_does_not_depend_on_the_machine(tmp_path):
    made = Timed(tmp_path, row(0), limit=math.inf, parallel=3)
    made.search._after = lambda rows: 7.0
    asked = Proposing(made.search, planned(1)).asked
    made.search._propose()
    assert asked[0][3] == 1
    assert made.clock.reserved == 0.0


def test_rows_for_which_there_is_no_time_leave_no_gap_in_the_numbers(tmp_path):
    made = Timed(tmp_path, row(0))
    some = planned(1), planned(2, 10**6), planned(3)
    found = made.search._affordable(some)
    assert [(one.number, one.recipe.batches) for one in found] == [(1, FULL), (2, FULL)]


@pytest.mark.parametrize(("left", "filled"), [(1.5, False), (5.0, True)])
def test_what_is_left_of_the_time_is_filled_if_it_is_seconds(tmp_path, left, filled):
    made = Timed(tmp_path, row(0), parallel=3)
    made.now = USABLE - left
    asked = Proposing(made.search).asked
    assert made.search._propose() == []
    assert [given[2] for given in asked[1:]] == [3] * filled
    assert made.search.table.ended == "nothing more"


def test_the_first_rung_may_spend_what_the_model_itself_leaves(tmp_path):
    made = Timed(tmp_path, planned(0), runs=4.0)
    asked = Proposing(made.search, planned(1)).asked
    assert [one.number for one in made.search._beside_first()] == [1]
    assert asked[0][1] == pytest.approx(0.75)
    assert list(made.search._beside_first()) == [], "once"


# ---- beside the longest run ----------------------------------------------------------------------


def test_a_rung_waits_for_its_last_run_at_the_speed_of_that_run(tmp_path):
    ended = row(3)
    made = Timed(tmp_path, row(0), planned(1, trained=8), planned(2), ended)
    made.now, search = 20.0, made.search
    assert search._longest() == 0.0
    search._begun = {2: (20.0, 0), 3: (0.0, 0)}
    search._running = {3: Running(3, 1, FULL)}
    assert search._longest() == pytest.approx(10.8), "as predicted, before its first batch"
    search._begun[1] = 10.0, 8
    search._running[1] = Running(1, 28, FULL)
    assert search._longest() == pytest.approx(0.5 * (FULL - 28)), "20 batches took 10 s"


def test_runs_beside_the_longest_end_before_it_and_in_time(tmp_path):
    made, drawn = Timed(tmp_path), list[int]()
    search = made.search

    def meanwhile(lengths: list[int], purpose: Purpose = "survivor") -> list[int]:
        def rows(table: Table):
            for batches in lengths:
                drawn.append(batches)
                yield planned(0, batches)

        drawn.clear()
        search.ladder.meanwhile = rows  # type: ignore[method-assign]
        longest = replace(planned(1, FULL), purpose=purpose)
        search.table, search._begun = Table((row(0), longest)), {1: (0.0, 0)}
        return [one.recipe.batches for one in search._meanwhile()]

    assert meanwhile([50, 400, FULL, FULL + 1, 20]) == [50, FULL, 20]
    assert [one.number for one in search.table.rows] == [0, 1, 2, 3, 4]
    assert meanwhile([400] * 9) == []
    assert len(drawn) == MAX_REFUSED
    assert meanwhile([50], purpose="finale") == [], "the finale has the device for itself"
    made.clock.start(planned(7, 1100))
    assert meanwhile([50]) == [], "it would not end in time"
    made.clock.end_rung(0.0)
    search._ranks = SimpleNamespace(size=2)  # type: ignore[assignment]
    assert meanwhile([50]) == [], "ranks have no clock in common"


# ---- the finale ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rung", "left", "settings", "due"),
    [
        (0, 98.0, {}, False),  # a full run takes 10.8 s: there is time for many
        (0, 10.8 / FEW + 1.0, {}, False),
        (0, 10.8 / FEW - 1.0, {}, True),
        (1, 98.0, {}, False),
        (2, 98.0, {}, True),  # a full rung has ended
        (2, 98.0, {"timed": False}, False),
    ],
)
def test_the_finale_comes_after_a_full_rung_or_where_there_is_no_time_for_many(
    tmp_path, rung, left, settings, due
):
    made = Timed(tmp_path, row(0, rung=rung), parallel=1, **settings)
    made.now, asked = USABLE - left, list[tuple[int, int]]()

    def finale(table: Table, batches: Any, count: int, cores: int) -> list[Row]:
        asked.append((batches(row(0)), count))
        return [planned(1, 300)]

    made.search.ladder.finale = finale  # type: ignore[method-assign]
    assert made.search._finale() == [planned(1, 300)] * due
    assert asked == [(int(SAFE * made.clock.left / 0.1), 1)] * 2 * due, "before and after timing it"
    if due:
        assert made.search._propose() == [planned(1, 300)], "and nothing else"


@pytest.mark.parametrize(("left", "abreast"), [(20.0, 1), (20.0, 3), (MIN_FILL, 1)])
def test_after_a_lone_last_run_comes_what_it_has_left_time_for(tmp_path, left, abreast):
    made = Timed(tmp_path, row(0), parallel=1)
    made.now, asked = USABLE - left, list[tuple[int, int]]()
    made.search.trainer.at_once = abreast

    def after_finale(table: Table, batches: Any, count: int) -> list[Row]:
        asked.append((batches(row(0)), count))
        return [planned(1, 10)]

    made.search.ladder.finale = lambda *_: []  # type: ignore[method-assign]
    made.search.ladder.after_finale = after_finale  # type: ignore[method-assign]
    made.search.ladder.filling = lambda *_: []  # type: ignore[method-assign]
    due = left > MIN_FILL
    assert (made.search._propose() == [planned(1, 10)]) is due
    assert asked == [(int(SAFE * made.clock.left / (0.1 * abreast)), abreast)] * due


@pytest.mark.parametrize(("left", "threads", "quick"), [
    (11.0, 0, True), (9.0, 0, False), (9.0, 2, True), (4.5, 2, False),
])  # fmt: skip
def test_slow_networks_are_not_timed(tmp_path, left, threads, quick):
    """Five batches take half a second."""
    made = Timed(tmp_path, row(0), parallel=1)
    made.now = USABLE - left
    assert made.search._quick_to_time([planned(1, threads=threads), planned(2)]) is quick


def test_a_network_that_is_proposed_because_another_was_slow_is_timed_as_well(tmp_path):
    """The lengths of a finale, and whether it may have all cores, follow from timed speeds."""
    made, looked = Timed(tmp_path, row(0, rung=2)), list[str]()
    plain, shifted = RECIPE, replace(RECIPE, augment="shift", batches=1)

    def finale(table: Table, batches: Any, count: int, cores: int) -> list[Row]:
        enough = batches(planned(1, recipe=shifted)) > 500
        return [planned(1, recipe=shifted if enough else plain)]

    def time(rows: Any) -> bool:
        looked.append(rows[0].recipe.augment)
        made.clock.time(rows[0], 0.5, 1)
        return True

    made.search.ladder.finale = finale  # type: ignore[method-assign]
    made.search._time = time  # type: ignore[method-assign]
    (chosen,) = made.search._timed_finale(1)
    assert looked == ["shift", "none"]
    assert chosen.recipe.augment == "none"
    assert made.clock.is_timed(chosen)


@pytest.mark.parametrize(("parallel", "cores", "asked"), [
    (1, 1, [(1, 0)]), (3, 1, [(3, 0)]), (9, 1, [(MAX_FINALE, 0)]), (2, 2, [(1, 2), (2, 0)]),
])  # fmt: skip
def test_the_finale_has_a_run_for_every_process_or_one_for_all_cores(
    tmp_path, parallel, cores, asked
):
    made, given = Timed(tmp_path, row(0, rung=2), parallel=parallel), list[tuple[int, int]]()
    made.search.trainer.cores = cores
    made.search.ladder.finale = lambda *four: given.append(four[2:]) or []  # type: ignore[method-assign]
    made.search._finale()
    assert given == asked


# ---- training ------------------------------------------------------------------------------------


def test_long_runs_start_first_and_a_rung_has_taken_its_own_time(tmp_path):
    class Slow(CountingTrainer):
        def _run(self, job, tick):
            made.now += 0.1 * job.recipe.batches
            return super()._run(job, tick)

    trainer, rungs = Slow(), list[float]()
    made = Timed(tmp_path, trainer=trainer, limit=1000.0)
    made.now = 30.0
    Proposing(made.search)
    made.clock.end_rung = rungs.append  # type: ignore[method-assign]
    made.search._affords = lambda one: True  # type: ignore[method-assign]
    made.search.run(Table((row(0), planned(1, 10), planned(2, 50), planned(3, 30))))
    assert list(dict.fromkeys(number for number, _ in trainer.trained)) == [2, 3, 1]
    assert rungs == [pytest.approx(9.0)]


def test_after_ctrl_c_nobody_is_given_a_job(tmp_path):
    made = Timed(tmp_path, row(0), planned(1), planned(2))
    jobs = made.search._jobs([planned(1), planned(2)])
    assert next(jobs).number == 1
    made.search._interrupted = True
    assert next(jobs, None) is None


def test_a_job_is_the_run_of_its_row_and_takes_room_from_its_start(tmp_path):
    made = Timed(tmp_path, row(0))
    job = made.search._job(planned(4, 50, seed=9))
    assert (job.number, job.recipe.batches, job.seed) == (4, 50, 9)
    assert job.checkpoint == made.disk.checkpoint(4)
    assert made.clock._started == {4: (0.0, pytest.approx(5.0))}


def outcome(trained: int, finite: bool = True, *losses: float) -> Outcome:
    curve = tuple((at, loss) for at, loss in enumerate(losses or (0.5,), 1))
    return Outcome(1, trained, finite, 0.5, 0.2, curve, 8.0, 0.1, HOW, {"w": torch.tensor(1)})


@pytest.mark.parametrize(
    ("found", "status", "diverged"),
    [
        (outcome(FULL), "finished", False),
        (outcome(40), "cut", False),
        (outcome(40, False), "cut", True),  # outputs in eval mode, early
        (outcome(40, False, 0.5, math.nan), "finished", True),
        (outcome(FULL, False), "finished", True),
    ],
)
def test_a_run_has_ended_at_its_last_batch_or_where_its_loss_was_lost(
    tmp_path, found, status, diverged
):
    made = Timed(tmp_path, row(0), planned(1, trained=20, status="cut"))
    state = made.disk.checkpoint(1)
    state.write_text("")
    made.search._record(found)
    one = made.search.table.rows[1]
    assert (one.status, one.diverged, one.trained, one.saved) == (status, diverged, found.trained,
                                                                  True)  # fmt: skip
    made.search._save()
    assert state.exists() == (status == "cut"), "what it continues from"
    ((_, seconds, each),) = made.clock._ended
    assert seconds == pytest.approx(each * (found.trained - 20)), "of this session"


def test_a_run_that_has_ended_is_in_the_table_a_second_later(tmp_path):
    """Also if no other one ends by then."""
    made = Timed(tmp_path, row(0), planned(1))
    search, disk = made.search, made.disk
    search._save()
    search._record(outcome(FULL))
    search._tick([])
    assert disk.table.rows[1].status == "planned", "it was written a moment ago"
    search._saved_at -= TABLE_SECONDS
    search._tick([])
    assert disk.table.rows[1].status == "finished"
    search._saved_at -= TABLE_SECONDS
    search._tick([])
    assert disk.tables == 2, "nothing has changed"


def test_a_search_that_is_stopped_when_the_time_is_over_is_complete(tmp_path):
    for now, complete in ((0.0, False), (LIMIT, True)):
        made = Timed(tmp_path, parallel=2)
        made.now, made.search._interrupted = now, True
        assert made.search.run(Table((row(0),), ended="before")) == complete
        assert made.search.table.ended == ("the time is over" if complete else "")
        assert made.disk.table.seconds == now


# ---- what is kept and returned -------------------------------------------------------------------


def test_weights_are_kept_of_what_fits_the_budget_and_of_the_model(tmp_path):
    made = Timed(tmp_path)
    made.search.networks.budget = Budget(params=60)
    made.search.table = Table((
        row(0, 0.3),
        row(1, 0.5, origin="width", params=50),
        row(2, 0.4, origin="width", params=55),  # dominated
        row(3, 0.6, origin="width", params=60),
        row(4, 0.9, origin="width", params=80),  # above the cap, which a resume may raise
        row(5, 0.8, origin="width", params=90),
        planned(6),
    ))  # fmt: skip
    made.search._forget()
    assert [one.number for one in made.search.table.rows if one.saved] == [0, 1, 3, 4, 6]
    assert made.search._forgotten == [2, 5]
    assert made.clock.judged == 3


def test_the_start_of_what_may_be_returned_is_kept_for_its_refit(tmp_path):
    made = Timed(tmp_path)
    grown = replace(row(2, 0.9, origin="grown", params=50), start=1)
    made.search.table = Table((
        row(0, 0.3), row(1, 0.5, origin="width", params=50), grown,
        replace(row(3, 0.4, origin="grown", params=50), start=4),
        row(4, 0.2, origin="width", params=50),
    ))  # fmt: skip
    made.search._forget()
    assert [one.number for one in made.search.table.rows if one.saved] == [0, 1, 2]


def test_limits_on_parameters_and_macs_are_each_for_their_own():
    rows = [row(0, params=50, macs=200), row(1, params=200, macs=50)]
    assert [one.number for one in within(rows, Budget(params=100))] == [0]
    assert [one.number for one in within(rows, Budget(macs=100))] == [1]


@pytest.mark.parametrize("losses", [(0.3, 0.2, 0.4), (0.3, 0.4, 0.2), (0.2, math.nan, 0.3)])
def test_of_equal_scores_the_lowest_loss_is_taken(losses):
    rows = [row(number, 0.5, loss=loss) for number, loss in enumerate(losses)]
    lowest = losses.index(0.2)
    assert frontier_numbers(rows) == control_numbers(rows) == {lowest}
