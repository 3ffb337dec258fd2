"""What each part of a rung proposes, in closed form: from which runs, in which order, how long."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from esper.growing.budget import Budget
from esper.growing.ladder import (
    AUGMENTED_EPOCHS,
    LEFT_SHARE,
    MAX_REFUSED,
    MAX_SMALLER,
    MIN_LONGER,
    SMALLER_SHARE,
)
from esper.growing.proposals import MAX_RUNS, MIN_BATCHES, RESTARTS
from esper.growing.runs import Row, Table
from search_support import RECIPE, FakeNetworks, ladder, row

SHORT, FULL = RECIPE.batches // 3, RECIPE.batches


def run(number: int, score: float, batches: int = SHORT, **changes) -> Row:
    """A run of the rung of its length; wider networks have more parameters."""
    variant = changes.pop("variant", 0)
    changes = {"rung": 1 if batches == SHORT else 2, "params": (100, 50, 200, 400)[variant],
               "origin": "width" if variant else "given", "variant": variant} | changes  # fmt: skip
    recipe = replace(RECIPE, batches=batches, lr=changes.pop("lr", 0.01))
    return row(number, score, recipe=recipe, trained=batches, **changes)


def said(rows) -> list[tuple[int | None, int]]:
    """Which runs are trained again, and for how long."""
    return [(one.parent, one.recipe.batches) for one in rows]


def test_the_two_best_so_far_are_trained_in_full():
    rows = [run(0, 0.5), run(1, 0.8, variant=1), run(2, 0.7, variant=2), run(3, 0.6, variant=3)]
    assert said(ladder()._best(2, rows)) == [(1, FULL), (2, FULL)]


def test_the_largest_is_trained_by_its_best_recipe_and_the_model_by_its_best_of_each_length():
    rows = [run(0, 0.5, FULL), run(1, 0.4, variant=3), run(2, 0.45, variant=3, lr=0.03),
            run(3, 0.9, variant=2), run(4, 0.3), run(5, 0.35, lr=0.03)]  # fmt: skip
    assert said(ladder()._widest(2, rows)) == [(2, FULL)]
    assert said(ladder()._control(2, rows)) == [(5, FULL), (0, FULL)]


def test_the_best_is_regularised_for_the_length_of_the_rung():
    made = ladder(space={"augments": ("none", "shift"), "smoothings": (0.0, 0.1)})
    rows = [run(0, 0.5), run(1, 0.8, variant=2, seed=3), run(2, 0.6, variant=3)]
    for rung, length in ((1, SHORT), (2, FULL)):
        found = list(made._regularised(rung, rows))
        assert said(found) == [(1, length)] * 2
        assert [(one.recipe.augment, one.recipe.label_smoothing, one.seed) for one in found] == [
            ("shift", 0.0, 3), ("none", 0.1, 3)]  # fmt: skip
    assert list(made._regularised(1, [])) == []


def test_short_runs_on_the_frontier_are_finished_in_full_the_largest_first():
    rows = [run(0, 0.5, FULL), run(1, 0.6, variant=1), run(2, 0.7, FULL, variant=2),
            run(3, 0.8, variant=3), run(4, 0.4)]  # fmt: skip
    assert said(ladder()._unfinished(3, rows)) == [(3, FULL), (1, FULL)]


def test_of_few_runs_two_go_on_and_none_of_an_earlier_rung():
    made = ladder(recipe=replace(RECIPE, batches=20))
    assert made._length(0) == made._length(1) == MIN_BATCHES
    few = [run(n, 0.5 - 0.1 * n, MIN_BATCHES, rung=1) for n in range(3)]
    better = run(3, 0.9, MIN_BATCHES, rung=0)
    assert [one.parent for one in made._survivors(2, [*few, better])] == [0, 1]


def test_a_full_rung_trains_best_regularised_model_widest_and_survivors_then_neighbours():
    made = ladder(space={"augments": ("none", "shift")})
    rows = [run(0, 0.5, FULL, rung=0), run(1, 0.9, variant=1), run(2, 0.8, variant=2),
            run(3, 0.3, variant=3), run(4, 0.4), run(5, 0.2, lr=0.03)]  # fmt: skip
    first = list(islice(made._proposals(2, rows), 8))
    assert [one.parent for one in first] == [1, 2, 1, 4, 0, 3, 1, 2]
    assert [one.recipe.augment for one in first] == ["none"] * 2 + ["shift"] + ["none"] * 5
    short = [replace(one, rung=0, recipe=replace(one.recipe, batches=FULL // 9))
             for one in rows[1:]]  # fmt: skip
    first = list(islice(made._proposals(1, short), 4))
    assert [one.parent for one in first] == [1, 2, 1, 1], "survivors, augmented, neighbours"
    assert [one.recipe.augment for one in first] == ["none", "none", "shift", "none"]
    flat = [replace(one, rung=2) for one in rows]
    assert said(islice(made._proposals(3, flat), 1)) == [(1, FULL)], "it never ran in full"


@pytest.mark.parametrize(
    ("full", "lengths"),
    [(5, [5, 5, 5]), (20, [12, 12, 20]), (60, [12, 20, 60]), (108, [12, 36, 108])],
)
def test_a_rung_is_a_ninth_then_a_third_then_the_whole_of_a_full_run(full, lengths):
    made = ladder(recipe=replace(RECIPE, batches=full))
    assert [made._length(rung) for rung in range(4)] == [*lengths, full]


def test_the_longest_runs_are_as_long_as_is_allowed():
    grown = [run(0, 0.3), run(1, 0.6, FULL)]
    assert {one.recipe.batches for one in ladder(longer=3)._longer(3, grown)} == {3 * FULL}
    assert list(ladder(longer=2)._longer(3, grown)) == []
    assert said(ladder()._longer(3, [run(1, 0.6, FULL)]))[0] == (1, 3 * FULL), "nothing to compare"


def test_neighbours_are_as_long_as_the_rung_and_later_as_their_parent():
    made, long = ladder(), [run(0, 0.6, 3 * FULL)]
    for rung, length in ((1, SHORT), (2, FULL), (3, 3 * FULL)):
        near = islice(made._neighbours(rung, long, made._generator(rung)), 60)
        assert {one.recipe.batches for one in near} == {length}


def test_neighbours_are_first_other_rates_of_the_largest_then_changes_of_the_four_best():
    made = ladder(FakeNetworks((100, 50, 200, 400), slots=0))
    rows = [run(0, 0.7, FULL, topology=()), run(1, 0.6, FULL, variant=1, topology=()),
            run(2, 0.75, FULL, variant=2, topology=()), run(3, 0.8, FULL, variant=3, topology=()),
            *(run(n, 0.1, FULL, topology=()) for n in (4, 5))]  # fmt: skip
    near = list(islice(made._neighbours(3, rows, made._generator(3)), 300))
    assert [one.parent for one in near[:16]] == [3] * 4 + [2] * 4 + [0] * 4 + [1] * 4
    assert {one.parent for one in near[16:]} == {0, 1, 2, 3}
    assert made._generator(3).random() != made._generator(4).random()


def test_the_next_width_up_or_down_keeps_seeds_and_initialisation():
    made, generator = ladder(), np.random.default_rng(0)

    def widths(parent: Row) -> set[tuple[int, tuple[str, ...], int, str]]:
        found = [list(made._other_widths(parent, 3, FULL, generator)) for _ in range(40)]
        return {(one.variant, one.topology, one.seed, one.origin) for some in found for one in some}

    planted = run(0, 0.5, FULL, topology=("mlp", ""), seed=7, origin="seeds")
    assert widths(planted) == {(v, ("mlp", ""), 7, "seeds") for v in (1, 2)}
    assert widths(run(1, 0.5, FULL, variant=1)) == {(0, ("", ""), 0, "given")}, "the narrowest"
    assert widths(run(2, 0.5, FULL, variant=3)) == {(2, ("", ""), 0, "width")}, "the widest"
    other = run(3, 0.5, FULL, topology=("mlp",))
    assert {found[1] for found in widths(other)} == {("", "")}, "a width with other places"
    grown = [one for _ in range(40) for one in made._other_seeds(planted, 3, FULL, generator)]
    assert {one.seed for one in grown} == {7}


def test_a_run_is_restarted_from_other_weights_each_time():
    made = ladder(seed=3)
    seeds = {made._restarted(row(), place).seed for place in range(RESTARTS)}
    assert len(seeds) == RESTARTS
    assert 3 not in seeds


def test_a_model_above_the_cap_is_no_parent():
    made = ladder(FakeNetworks(budget=Budget(params=60)))
    rows = [run(0, 0.9, FULL), run(1, 0.5, FULL, variant=1)]
    assert [one.number for one in made._sound(rows)] == [1]


def test_larger_batches_cost_more():
    recipe = replace(RECIPE, batch_size=4 * RECIPE.batch_size)
    assert ladder().sized(row(recipe=recipe)).cost == 4.0


def test_what_is_known_already_ends_the_proposals_only_if_nothing_new_comes_between():
    made, old = ladder(), row()
    fresh = [row(n, recipe=replace(RECIPE, lr=0.001 * n)) for n in range(1, 4)]
    mixed = [one for new in fresh for one in (*[old] * 4 * MAX_RUNS, new)]
    assert [one.key for one in made._fresh(iter(mixed), [old])] == [one.key for one in fresh]
    late = [*[old] * (4 * MAX_RUNS + 1), fresh[0]]
    assert list(made._fresh(iter(late), [old])) == []


def test_a_rung_stalls_if_the_frontier_is_that_of_the_rung_before():
    made = ladder(FakeNetworks((100,)))

    def stalled(*scores: float) -> int:
        return made._stalled([run(n, score, FULL, rung=n) for n, score in enumerate(scores)])

    assert stalled(0.5, 0.5, 0.5) == 0, "the first full rung has to be seen"
    assert stalled(0.5, 0.5, 0.5, 0.5) == 1
    assert stalled(0.5, 0.5, 0.5, 0.5, 0.5) == 2
    assert stalled(0.5, 0.5, 0.5, 0.6, 0.5, 0.5) == 2
    assert stalled(0.5, 0.5, 0.5, 0.5, 0.6, 0.5) == 1
    assert stalled(0.5, 0.5, 0.5, 0.5, 0.5, 0.6) == 0


def test_in_the_first_rung_alone_a_network_must_leave_room_for_its_full_run():
    made = ladder()
    short = row(1, recipe=replace(RECIPE, batches=SHORT))
    assert made._affordable(iter([short]), lambda _: 0.3, 1.0, 1.0) == [], "0.9 in full"
    assert made._affordable(iter([short]), lambda _: 0.2, 1.0, 1.0) == [short]
    later = replace(short, rung=1)
    assert made._affordable(iter([later]), lambda _: 0.3, 1.0, 1.0) == [later]
    assert made._affordable(iter([row()]), lambda _: 0.9, 1.0, 1.0) == [row()], "it is a full run"


def test_a_rung_is_full_after_eight_in_a_row_that_are_too_dear():
    made = ladder()
    dear = [row(n, rung=1, params=9) for n in range(MAX_REFUSED)]
    cheap = [row(50 + n, rung=1, params=1) for n in range(3)]

    def chosen(rows: list[Row]) -> list[Row]:
        return made._affordable(iter(rows), lambda one: float(one.params), 5.0, 5.0)

    between = [cheap[0], *dear[1:], cheap[1], *dear[1:], cheap[2]]
    assert chosen(between) == cheap
    assert chosen([cheap[0], *dear, cheap[1]]) == cheap[:1]


def test_only_sound_runs_from_their_own_start_fill_the_time_and_none_twice():
    made = ladder()
    large = replace(RECIPE, batch_size=2 * RECIPE.batch_size, batches=FULL // 2)
    rows = (
        row(0, 0.5),
        row(1, math.nan, diverged=True, variant=1),
        row(2, 0.9, start=0, topology=("mlp", "")),
        row(3, 0.8, recipe=large, seed=4),
        row(4, 0.7, status="cut", variant=2),
        row(5, 0.6, recipe=replace(RECIPE, batches=50)),
        row(6, 0.55, recipe=replace(RECIPE, batches=70)),
    )
    found = made.filling(Table(rows), lambda one: 60, 5)
    assert said(found) == [(3, 60), (5, 60)], "60 of twice the size are as long as 120"
    assert made.filling(Table(rows), lambda one: 70, 5)[1:] == [], "the usual size ran so long"
    assert said(made.filling(Table(rows), lambda one: 60, 1)) == [(3, 60)]


def test_widths_near_that_of_the_model_come_before_others():
    made = ladder(FakeNetworks((100, 25, 200, 400, 60)), rates=(0.01,))
    assert [made.sized(one).params for one in made._widths(0)] == [400, 100, 60, 200, 25]


@pytest.mark.parametrize(("least", "count"), [(1, 1), (3, 3), (9, 5)])
def test_a_rung_has_a_run_for_every_process_as_far_as_the_budget_goes(least, count):
    """Each costs a fifth of what is left, more than half of the rung's share of it."""
    short = Table((run(0, 0.5), run(1, 0.6, variant=3)))
    rows, _ = ladder().next_rung(short, 1.0, lambda one: 0.2, least)
    assert [one.rung for one in rows] == [2] * count


def test_where_short_runs_are_too_dear_for_their_share_the_next_rung_is_one_of_full_runs():
    made = ladder(FakeNetworks((100,)))
    table = Table((replace(made.sized(made.first()), status="finished", trained=FULL, score=0.5),))
    rows, _ = made.next_rung(table, 0.5, lambda one: one.recipe.batches / (2 * FULL))
    assert [(one.number, one.rung, one.recipe.batches) for one in rows] == [(1, 1, FULL)]


# ---- under a limit on time -----------------------------------------------------------------------


TIMED = {"timed": True}
GAINED = (run(0, 0.5), run(1, 0.7, FULL, variant=3), run(2, 0.6, variant=3))
"""The widest network has gained from length; the model was trained for a third of a full run."""


def whole_finale(made, rows, batches: int = 400, count: int = 2) -> list[Row]:
    def fitting(one: Row) -> int:
        assert one.cost > 0, "its speed is not known without a size"
        return batches

    return made.finale(Table(tuple(rows)), fitting, count)


def finale(made, rows, batches: int = 400, count: int = 2) -> list[Row]:
    """Without smaller networks, for which the last run has made room."""
    found = whole_finale(made, rows, batches, count)
    long = [one for one in found if one.purpose == "finale"]
    room = sum(one.recipe.batches for one in found[len(long) :])
    room += round(LEFT_SHARE * batches) if count == 1 else 0
    if long and long[-1].recipe.batches + room == batches:
        long[-1] = replace(long[-1], recipe=replace(long[-1].recipe, batches=batches))
    return long


def test_the_first_run_is_short_where_time_is_limited_and_others_need_a_third():
    for settings, first, least in (({}, FULL, FULL), (TIMED, FULL // 9, SHORT)):
        made = ladder(**settings)
        assert made.first().recipe == replace(RECIPE, batches=first)
        assert made.least_run() == made.sized(replace(made.first(), recipe=replace(RECIPE,
                                              batches=least)))  # fmt: skip
    short = row(1, recipe=replace(RECIPE, batches=FULL // 9))
    chosen = ladder(**TIMED)._affordable
    assert chosen(iter([short]), lambda _: 0.2, 1.0, 1.0) == [short], "0.6 for a third"
    assert chosen(iter([short]), lambda _: 0.25, 1.0, 1.0) == []


def test_a_full_run_is_one_of_the_best_network_near_the_cap():
    made = ladder(FakeNetworks(budget=Budget(params=400)))
    small, large, best = run(0, 0.9, variant=1), run(1, 0.5, variant=3), run(2, 0.6, variant=2)
    assert said([made.in_full(Table((small, large, best)))]) == [(2, FULL)]
    assert said([made.in_full(Table((small,)))]) == [(0, FULL)], "all are far below it"
    assert made.in_full(Table(())).recipe == RECIPE
    assert made.in_full(Table((large,))).cost == 4.0


def test_the_finale_is_what_has_gained_from_length_for_the_rest_of_the_time():
    made = ladder(**TIMED)
    found = finale(made, GAINED)
    assert said(found) == [(1, 400), (1, 400)], "and once more from other weights"
    assert [one.seed == 0 for one in found] == [True, False]
    assert [(one.number, one.rung, one.cost) for one in found] == [(3, 3, 4.0), (4, 3, 4.0)]
    assert said(finale(made, GAINED, count=1)) == [(1, 400)]
    assert said(finale(made, GAINED, 10**6, 1)) == [(1, 9 * FULL)], "no longer than is allowed"
    least = math.ceil(MIN_LONGER * FULL)
    assert said(finale(made, GAINED, least, 1)) == [(1, least)]
    assert finale(made, GAINED, least - 1) == [], "not much longer than before"
    flat = [replace(one, score=0.7) for one in GAINED]
    assert finale(made, flat) == finale(made, []) == []
    large = replace(RECIPE, batch_size=2 * RECIPE.batch_size, batches=FULL // 2)
    twice = [GAINED[0], replace(GAINED[1], recipe=large), GAINED[2]]
    assert said(finale(made, twice, 100, 1)) == [(1, 100)], "as long as 200 of the usual size"


def test_the_finale_is_one_of_networks_near_the_cap():
    made = ladder(FakeNetworks(budget=Budget(params=400)), **TIMED)
    small = run(3, 0.9, FULL, variant=1), run(4, 0.5, variant=1)
    assert said(finale(made, [*GAINED, *small], count=1)) == [(1, 400)]


def test_in_long_runs_weaker_augmentation_comes_first_where_none_was_tried():
    names = ("none", "shift", "flip+shift", "flip+shift+cutout")

    def tried(rows, batches: int = 400, epoch: float = 10.0) -> list[str]:
        made = ladder(space={"augments": names, "epoch": epoch}, **TIMED)
        return [one.recipe.augment for one in finale(made, rows, batches, 4)]

    assert tried(GAINED) == ["shift", "flip+shift", "none", "none"], "one for every process"
    exactly = 400 / AUGMENTED_EPOCHS
    assert tried(GAINED, epoch=exactly) == ["shift", "flip+shift", "none", "none"]
    assert tried(GAINED, epoch=1.01 * exactly) == ["none", "shift", "none"], "too few epochs"
    other = run(3, 0.2, FULL, variant=3)
    other = replace(other, recipe=replace(other.recipe, augment="shift"))
    assert tried([*GAINED, other]) == ["none", "shift", "flip+shift", "none"], "as they gain"


def test_the_model_is_trained_for_a_third_of_a_full_run_and_the_last_run_gives_it_the_time():
    made = ladder(**TIMED)
    short = run(0, 0.5, FULL // 9), run(3, 0.4, FULL // 9, lr=0.03)
    rows = [*short, *GAINED[1:]]
    *_, last = found = whole_finale(made, rows)
    assert (last.purpose, last.origin) == ("reference", "given")
    assert said([last]) == [(0, SHORT)]
    assert sum(one.recipe.batches for one in found) == 2 * 400
    cut = replace(short[0], status="cut")
    found = whole_finale(made, [cut, *GAINED[1:]])
    assert "reference" not in {one.purpose for one in found}, "nothing is known of it"


@pytest.mark.parametrize("cores", [0, 4])
def test_a_lone_last_run_leaves_a_part_of_the_time_for_after_it(cores):
    made = ladder(longer=10**5, **TIMED)
    rows = (*GAINED, run(3, 0.6, variant=2))
    (only,) = made.finale(Table(rows), lambda _: 1000, 1, cores)
    assert (only.threads, only.purpose) == (cores, "finale")
    assert only.recipe.batches == round((1 - LEFT_SHARE) * 1000)
    two = made.finale(Table(rows), lambda _: 1000, 2)
    for without in (rows, (*rows, *two)):
        found = made.after_finale(Table(without), lambda _: 1000, 2)
        assert found == [], "there was no lone one"


@pytest.mark.parametrize("lanes", [1, 2, 8])
def test_after_a_lone_last_run_the_model_and_smaller_networks_share_what_is_left(lanes):
    made, short = ladder(**TIMED), run(0, 0.5, FULL // 9)
    rows = (short, *GAINED[1:], run(3, 0.6, variant=2))
    last = run(4, 0.9, 9 * FULL, variant=3, rung=3)
    table = Table((*rows, replace(last, purpose="finale")))
    reference, *smaller = found = made.after_finale(table, lambda _: 400, lanes)
    assert [one.number for one in found] == [*range(5, 5 + len(found))]
    assert {one.rung for one in found} == {4}
    assert (reference.purpose, *said([reference])) == ("reference", (0, SHORT))
    assert {one.purpose for one in smaller} == {"smaller"}
    parts = [one.recipe.batches for one in smaller]
    assert len(parts) == 3, "a half, a quarter, an eighth of its size"
    in_a_lane = {1: 3, 2: 2, 8: 1}[lanes]
    assert parts == [round((lanes - SHORT / 400) / lanes / in_a_lane * 400)] * 3
    few = made.after_finale(table, lambda _: 2 * SHORT - 1, 1)
    assert {one.purpose for one in few} == {"smaller"}, "it would take more than half"


def smaller(made, rows, batches: int = 400, count: int = 2) -> list[tuple[int, int | None, int]]:
    """Sizes of the smaller networks of a finale, what they come from, and how long they last."""
    found = whole_finale(made, rows, batches, count)
    return [(one.params, one.parent, one.recipe.batches) for one in found
            if one.purpose == "smaller"]  # fmt: skip


def test_the_finale_has_a_network_of_half_the_size_of_a_quarter_and_so_on():
    each = 75  # of 900 batches an eighth of two runs, for three sizes
    given, worse, better = run(0, 0.5), run(3, 0.6, variant=2), run(4, 0.65, variant=2, lr=0.03)
    rows = [given, *GAINED[1:], worse, better]
    assert smaller(ladder(**TIMED), rows, 900) == [(50, 0, each), (200, 4, each), (100, 0, each)]
    *_, small = whole_finale(ladder(**TIMED), rows, 400)
    assert (small.variant, small.topology, small.recipe.lr) == (1, ("", ""), given.recipe.lr)
    assert small.origin == "width", "not tried so far: by the recipe of the nearest"
    two, one = [(50, 0, 56), (200, 4, 56)], [(50, 0, 100)]
    assert smaller(ladder(**TIMED), rows, 450) == two, "half as long again as before, or none"
    assert smaller(ladder(**TIMED), rows, 400) == one, "the least trained comes first"
    few = FakeNetworks(params=(100, 400))
    both = [replace(one, variant=min(1, one.variant)) for one in GAINED]
    assert smaller(ladder(few, **TIMED), both, 900) == [(100, 0, 3 * each)], "for itself"
    assert smaller(ladder(few, **TIMED), both, 10**6) == [(100, 0, 9 * FULL)], "as long as others"
    assert smaller(ladder(few, **TIMED), [run(0, 0.6, FULL), *both[1:]], 400) == [], (
        "it was as long"
    )


@pytest.mark.parametrize("count", [2, 4])
def test_smaller_networks_get_a_part_of_the_finale_that_its_last_run_gives(count):
    made = ladder(FakeNetworks(params=(50, 100, 200, 400)), **TIMED)
    rows = [run(n, 0.5 + 0.1 * n, variant=n, params=50 * 2**n) for n in range(4)]
    long = run(4, 0.9, FULL, variant=3)
    found = whole_finale(made, [*rows, long], 900, count)
    long = [one.recipe.batches for one in found if one.purpose == "finale"]
    parts = [one.recipe.batches for one in found if one.purpose == "smaller"]
    assert 1 <= len(parts) <= MAX_SMALLER
    assert sum(parts) == pytest.approx(SMALLER_SHARE * len(long) * 900, abs=len(parts))
    assert long == [900] * (len(long) - 1) + [900 - sum(parts)]
