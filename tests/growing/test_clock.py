"""The clock of a search: what a run will take, whether it fits, what is kept for the end."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from esper.growing.clock import (
    AUGMENTED,
    ENOUGH,
    MAX_FASTER,
    NARROWEST,
    REPORT_SECONDS,
    REPORT_SHARE,
    SPARE,
    Clock,
)
from esper.growing.runs import Row
from esper.growing.trainers.job import Outcome
from search_support import HOW, RECIPE, row


class Time:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def clock(limit: float = 600.0, earlier: float = 0.0, share: float = 1.0) -> tuple[Clock, Time]:
    time = Time()
    return Clock(time, 100.0, limit, earlier, share), time


def planned(cost: float = 1.0, batches: int = 100, **changes) -> Row:
    recipe = replace(RECIPE, batches=batches)
    return row(status="planned", trained=0, cost=cost, recipe=recipe, **changes)


def outcome(seconds: float, trained: int = 100, judging: float = 0.0) -> Outcome:
    return Outcome(0, trained, True, 0.5, 0.1, (), seconds, judging, HOW, {})


def test_seconds_run_from_the_call_and_earlier_sessions_count():
    made, time = clock(earlier=30.0)
    time.now = 112.0
    assert made.seconds == 42.0


def test_without_a_limit_there_is_always_time():
    made, time = clock(limit=math.inf)
    time.now = 1e9
    made.learn_speed(planned(), 1e6)
    assert made.left == math.inf
    assert made.fits(planned())
    assert made.most_cost(planned(), 0.5) == math.inf


def test_a_reserve_is_kept_for_judging_and_the_report():
    made, time = clock(share=2.0)
    assert made.left == pytest.approx(600 - REPORT_SECONDS - REPORT_SHARE * 600)
    for judging in (9.0, 0.25, 0.1):  # the first one warms up: the median counts
        made.learn(planned(), outcome(1.0, judging=judging), 100)
    made.judged = 7
    reserve = REPORT_SECONDS + REPORT_SHARE * 600 + (7 + SPARE) * 0.25 * 2.0
    time.now = 150.0
    assert made.left == pytest.approx(600 - 50 - reserve)
    small, _ = clock(limit=2.0)
    assert small.left == pytest.approx(0.8 * 2.0), "at most a fifth"


def test_a_network_that_was_timed_takes_what_it_took():
    made, _ = clock()
    assert made.batch_seconds(planned()) == 0.0, "nothing is known"
    made.learn(planned(), outcome(3.0), 100)
    made.end_rung(3.0)
    assert made.batch_seconds(planned()) == pytest.approx(0.03)
    assert made.predict(planned(batches=50)) == pytest.approx(1.5)
    half = replace(planned(batches=50), trained=20)
    assert made.predict(half) == pytest.approx(0.9)
    made.learn_speed(planned(), 0.05)
    made.learn(planned(), outcome(99.0), 0)
    made.end_rung(99.0)
    assert made.batch_seconds(planned()) == 0.05, "nothing was trained in this session"


def test_others_take_more_by_their_cost_from_the_nearest():
    made, _ = clock()
    made.learn_speed(planned(cost=1.0), 0.03)
    made.learn_speed(planned(cost=8.0, variant=2), 0.2)
    assert made.batch_seconds(planned(cost=3.0, variant=1)) == pytest.approx(0.09)
    assert made.batch_seconds(planned(cost=10.0, variant=3)) == pytest.approx(0.25)
    assert made.batch_seconds(planned(cost=1.0, topology=("mlp", ""))) == pytest.approx(0.03)
    assert made.batch_seconds(planned(cost=6.0, variant=1)) == pytest.approx(0.15)


def test_smaller_networks_take_their_time_too():
    made, _ = clock()
    made.learn_speed(planned(cost=4.0), 0.04)
    assert made.batch_seconds(planned(cost=0.5, variant=1)) == pytest.approx(NARROWEST * 0.04)


def test_a_run_fits_if_nine_tenths_of_its_time_are_left():
    made, time = clock(limit=100.0)
    made.learn_speed(planned(), 1.0)
    left = made.left
    fitting = int(left / ENOUGH)
    assert made.fits(planned(batches=fitting))
    assert not made.fits(planned(batches=fitting + 2))
    time.now += 10.0
    assert not made.fits(planned(batches=fitting))


def test_runs_side_by_side_share_the_time():
    """Four runs that took 4 s each in 5 s: a batch costs the search 0.0125 s, not 0.04."""
    made, _ = clock(limit=100.0)
    made.begin(planned(number=0), 0.02, 1)
    assert made.share(planned()) == made.predict(planned()) == pytest.approx(2.0)
    runs = [planned(number=n, variant=n % 2) for n in range(1, 5)]
    for one in runs:
        made.start(one)
        made.learn(one, outcome(4.0), 100)
    made.end_rung(5.0)
    assert made.parallel == pytest.approx(3.2)
    assert made.share(runs[0]) == pytest.approx(4.0 / 3.2)
    assert made.beside(runs[0]) == pytest.approx(4.0), "what it took beside the others"
    assert made.predict(runs[1]) == pytest.approx(2.0), "by itself it takes what the probe took"


def test_runs_of_several_processes_do_not_slow_each_other():
    made, _ = clock(limit=100.0)
    made.begin(planned(number=0), 0.02, 4)
    assert made.share(planned()) == pytest.approx(0.5)
    assert made.predict(planned()) == made.beside(planned()) == pytest.approx(2.0)
    assert made.most_cost(planned(), 0.5) == pytest.approx(0.5 * made.left / 2.0)


def test_runs_under_way_count_when_another_one_asks_for_room():
    made, _ = clock(limit=100.0)
    made.learn_speed(planned(), 0.4)
    first, second, third = (planned(number=n) for n in (1, 2, 3))
    for one in (first, second):
        assert made.fits(one)
        made.start(one)
    assert not made.fits(third), "two of 40 s each are under way"
    made.learn(first, outcome(40.0), 100)
    assert made.fits(third)


def test_the_dearest_network_takes_its_share_of_what_is_left():
    made, _ = clock()
    first = planned(batches=1000)
    assert made.most_cost(first, 0.5) == math.inf, "nothing is known"
    made.learn_speed(first, 0.02)
    wide = planned(cost=made.most_cost(first, 0.5), batches=1000, variant=1)
    assert made.predict(wide) == pytest.approx(0.5 * made.left)


def test_time_that_is_kept_for_a_refit_is_not_left():
    made, _ = clock()
    before = made.left
    made.reserved = 50.0
    assert made.left == before - 50.0


@pytest.mark.parametrize(("parallel", "faster"), [(1, 1.0), (2, 2.0), (8, MAX_FASTER)])
def test_networks_are_judged_faster_at_the_end_than_beside_others(parallel, faster):
    made, _ = clock()
    made.begin(planned(), 0.02, parallel)
    nothing = made.left
    made.learn(planned(), outcome(1.0, judging=4.0), 100)
    assert nothing - made.left == pytest.approx((1 + SPARE) * 4.0 / faster)


def test_of_a_run_that_was_continued_the_seconds_of_this_session_count():
    made, _ = clock()
    made.learn(planned(), outcome(10.0, trained=100), 50)
    made.end_rung(2.5)
    assert made.parallel == pytest.approx(2.0), "5 of its 10 s were in these 2.5 s"
    assert made.batch_seconds(planned()) == pytest.approx(0.05)


def test_time_between_runs_does_not_make_them_slower():
    made, _ = clock()
    made.learn(planned(), outcome(3.0), 100)
    made.end_rung(6.0)
    assert made.parallel == 1.0
    assert made.batch_seconds(planned()) == pytest.approx(0.03)


def test_an_urgent_run_says_nothing_about_the_speed_of_others():
    made, _ = clock()
    made.learn_speed(planned(), 0.02)
    made.learn(planned(), outcome(0.5), 100, urgent=True)
    other = planned(variant=1, cost=2.0)
    made.learn(other, outcome(3.5), 100)
    made.end_rung(2.0)
    assert made.parallel == 2.0, "it trained beside the other one"
    assert made.batch_seconds(planned()) == 0.02
    assert made.batch_seconds(other) == 0.0175


def test_runs_that_never_ended_take_no_room_in_the_next_rung():
    made, _ = clock(limit=100.0)
    made.learn_speed(planned(), 0.8)
    made.start(planned(number=1))
    assert not made.fits(planned(number=2))
    made.end_rung(0.0)
    assert made.fits(planned(number=2))


def test_batches_of_another_size_have_a_time_of_their_own():
    made, _ = clock()
    large = replace(planned(cost=2.0), recipe=replace(RECIPE, batch_size=16, batches=100))
    made.learn_speed(planned(), 0.03)
    assert made.batch_seconds(large) == pytest.approx(0.06), "by its cost, before it is timed"
    made.learn_speed(large, 0.04)
    assert (made.batch_seconds(planned()), made.batch_seconds(large)) == (0.03, 0.04)


def test_a_run_by_itself_is_slower_than_its_share_but_never_faster():
    made, _ = clock(limit=10.0)
    made.begin(planned(), 0.04, 4)
    wide = planned(variant=1, cost=2.0)
    made.learn_speed(wide, 0.05)
    half = replace(wide, trained=60)
    assert made.share(half) == pytest.approx(0.05 * 40)
    assert made.predict(half) == pytest.approx(4 * 0.05 * 40)
    assert made.whole_run(half) == pytest.approx(4 * 0.05 * 100), "from its start"
    assert made.share(wide) < made.left < ENOUGH * made.predict(wide)
    assert not made.fits(wide), "though its share would"
    made.learn_speed(planned(), 0.08)
    assert made.predict(wide) == made.share(wide)


def test_augmentation_takes_a_tenth_more_until_it_is_timed():
    made, _ = clock()
    made.learn_speed(planned(), 0.02)
    shift, flip = (replace(planned(), recipe=replace(RECIPE, augment=name))
                   for name in ("shift", "flip"))  # fmt: skip
    assert made.batch_seconds(shift) == pytest.approx(AUGMENTED * 0.02)
    made.learn_speed(shift, 0.03)
    assert (made.batch_seconds(planned()), made.batch_seconds(shift)) == (0.02, 0.03)
    assert made.batch_seconds(flip) == pytest.approx(AUGMENTED * 0.03), "than the slowest of them"
    made.learn_speed(planned(variant=1, cost=1.0), 0.01)
    assert made.batch_seconds(flip) == pytest.approx(AUGMENTED * 0.03), "of its own network"
