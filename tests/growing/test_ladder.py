"""Proposals of the ladder: pure, new, within the caps and the budget, the model itself first."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.growing.budget import Budget
from esper.growing.ladder import MAX_SHARE, SHARES, Ladder
from esper.growing.moves import RATE_LIMITS
from esper.growing.proposals import MAX_RUNS, MIN_BATCHES, RESTARTS
from esper.growing.runs import Recipe, Row, Table
from search_support import RATES, RECIPE, FakeNetworks, ended, ladder, quality, row


def price(one: Row) -> float:
    """As a share of twelve full runs."""
    return one.cost * one.recipe.batches / (12 * RECIPE.batches)


def climb(made: Ladder, rungs: int, score=quality, left: float = 1.0) -> Table:
    """The table after some rungs, a first run included."""
    table = ended(Table(), [made.sized(made.first())], score)
    for _ in range(rungs):
        rows, _ = made.next_rung(table, left, price)
        table = ended(table, rows, score)
    return table


def of_rung(table: Table, rung: int) -> list[Row]:
    return [one for one in table.rows if one.rung == rung]


def test_the_first_run_is_the_model_as_given_in_full():
    made = ladder()
    first = made.sized(made.first())
    assert (first.number, first.rung, first.variant, first.origin) == (0, 0, 0, "given")
    assert first.topology == ("", "")
    assert first.recipe == RECIPE
    assert (first.params, first.macs, first.cost) == (100, 200, 1.0)
    assert first.start is first.parent is None


def test_under_a_limit_on_time_the_first_run_is_short_unless_the_model_is_the_reference_alone():
    assert ladder(timed=True).first().recipe.batches == RECIPE.batches // 9
    above = ladder(FakeNetworks(budget=Budget(params=60)), timed=True)
    assert above.first().recipe == RECIPE


def finale(made: Ladder, table: Table, batches: int, count: int) -> list[tuple[int, str, int]]:
    rows = made.finale(table, lambda _: batches, count)
    return [(one.params, one.recipe.augment, one.recipe.batches) for one in rows]


def test_where_nothing_was_augmented_the_finale_is_if_it_lasts_for_many_epochs():
    networks = FakeNetworks(budget=Budget(params=450))
    made = ladder(networks, timed=True, space={"augments": LEVELS, "epoch": 20.0})
    first = made.sized(made.first())
    rows = [first, *made.beside_first(Table((first,)), 10.0, price)]
    table = ended(Table(), rows, quality)
    *long, last = finale(made, table, 400, 2)
    assert last == (100, "none", 36), "the model for a third of a full run"
    assert [one[:2] for one in long] == [
        (400, "shift"), (400, "flip+shift"), (200, "none"), (100, "none"), (50, "none")
    ]  # fmt: skip
    assert long[0][2] == 400
    assert sum(one[2] for one in (*long, last)) == 2 * 400, "at the cost of the last one"
    assert finale(made, table, 200, 3)[:2] == [(400, "none", 200), (400, "shift", 200)]
    assert finale(made, table, 17, 2) == [], "less than half as long again as before"


def test_beside_the_first_run_are_the_widest_and_all_rates_then_widths_near_its_own():
    made = ladder()
    rows = made.beside_first(Table((made.sized(made.first()),)), 10.0, price)
    assert {r.recipe.batches for r in rows} == {RECIPE.batches // 9}
    assert [(r.params, r.recipe.lr) for r in rows] == [
        (400, 0.01), (100, 0.01), (100, 0.03), (100, RATES[0]), (400, 0.03), (400, RATES[0]),
        (50, 0.01), (200, 0.01), (50, 0.03), (200, 0.03), (50, RATES[0]), (200, RATES[0]),
    ]  # fmt: skip
    assert {r.origin for r in rows if r.params != 100} == {"width"}
    assert {r.origin for r in rows if r.params == 100} == {"given"}


@pytest.mark.parametrize("early", [True, False])
def test_where_it_may_the_best_of_the_first_rung_is_trained_in_full_at_once(early):
    networks = FakeNetworks(budget=Budget(params=250))
    made = ladder(networks, timed=True, early=early, space={"augments": LEVELS})
    table = climb(made, 1)
    best = max((one for one in table.rows if one.params > 125), key=lambda one: one.merit)
    rows, _ = made.next_rung(table, 10.0, price)
    full = [one for one in rows if one.recipe.batches == RECIPE.batches]
    wanted = [(best.number, best.recipe.lr, name) for name in ("none", "shift")]
    assert [(one.parent, one.recipe.lr, one.recipe.augment) for one in full] == wanted * early
    assert rows[: len(full)] == full, "before all others"
    assert {one.purpose for one in full} <= {"best"}


def test_numbers_and_rungs_go_on_and_no_run_comes_twice():
    table = climb(ladder(), 5)
    assert [one.number for one in table.rows] == list(range(len(table.rows)))
    assert [one.rung for one in table.rows] == sorted(one.rung for one in table.rows)
    assert table.rungs == 5
    assert len({one.key for one in table.rows}) == len(table.rows)


def test_networks_are_within_the_caps():
    for budget in (Budget(params=190), Budget(macs=380)):
        table = climb(ladder(FakeNetworks(budget=budget)), 4)
        assert max(one.params for one in table.rows) <= 190
        assert len({one.params for one in table.rows}) > 2


def test_survivors_are_the_frontier_for_three_times_as_long():
    table = climb(ladder(), 1)
    short = of_rung(table, 0)[1:]
    best = max(short, key=lambda one: one.merit)
    smallest = min(short, key=lambda one: (one.params, -one.merit))
    rows, _ = ladder().next_rung(table, 1.0, price)
    again = {(r.parent, r.recipe.batches) for r in rows}
    assert {(best.number, RECIPE.batches // 3), (smallest.number, RECIPE.batches // 3)} <= again
    assert 0 not in {one.parent for one in ladder()._survivors(1, table.rows)}, "it ran in full"
    full = of_rung(climb(ladder(), 3), 2)
    assert {r.recipe.batches for r in full} == {RECIPE.batches}


def test_of_many_a_third_goes_on_and_the_whole_frontier():
    made = ladder(FakeNetworks(params=(100,)))
    short = [replace(RECIPE, batches=36, lr=0.001 * (n + 1)) for n in range(9)]
    rows = [row(n, 0.5 + 0.01 * n, rung=1, params=100 + n, recipe=short[n]) for n in range(9)]
    kept = list(made._survivors(2, rows))
    assert {one.parent for one in kept} == set(range(9)), "all of them are on the frontier"
    level = [replace(one, params=100, score=0.5 - 0.01 * one.number) for one in rows]
    assert [one.parent for one in made._survivors(2, level)] == [0, 1, 2]


def test_the_model_itself_is_trained_in_full_at_its_best_rate():
    def score(one: Row) -> float:
        return 0.9 if one.origin == "given" and one.recipe.lr == RATES[0] else 0.3

    full = [r for r in of_rung(climb(ladder(), 3, score), 2) if r.origin == "given"]
    assert RATES[0] in {r.recipe.lr for r in full}


def test_runs_that_diverged_go_nowhere():
    def score(one: Row) -> float:
        return math.nan if one.recipe.lr > 0.005 and one.number else quality(one)

    table = climb(ladder(), 4, score)
    lost = {one.number for one in table.rows if one.diverged}
    assert lost
    assert not lost & {one.parent for one in table.rows}
    assert not lost & {one.start for one in table.rows}
    nothing = climb(ladder(), 3, lambda one: math.nan)
    assert all(one.parent is None for one in nothing.rows)


@pytest.mark.parametrize(("best", "wanted"), [(0, RATES[0] / 3), (2, RATES[2] * 3)])
def test_rates_extend_while_the_best_lies_at_an_edge(best, wanted):
    def score(one: Row) -> float:
        return 0.9 if one.recipe.lr == RATES[best] else 0.5

    tried = {one.recipe.lr for one in climb(ladder(), 2, score).rows}
    assert any(math.isclose(rate, wanted, rel_tol=1e-3) for rate in tried)


def test_rates_that_the_user_named_are_the_only_ones_and_none_is_beyond_reason():
    table = climb(ladder(more_rates=False), 6)
    assert {one.recipe.lr for one in table.rows} <= set(RATES)
    high = climb(ladder(), 7, lambda one: min(0.99, one.recipe.lr))
    low, most = RATE_LIMITS["adamw"]
    assert all(low <= one.recipe.lr <= most for one in high.rows)
    assert max(one.recipe.lr for one in high.rows) > 0.2


@pytest.mark.parametrize("networks", [FakeNetworks((100,), slots=0), FakeNetworks((100, 50), 0)])
def test_where_nothing_new_is_left_the_search_is_over(networks):
    made = ladder(networks, rates=(0.01,), more_rates=False, longer=1)
    table = climb(made, 12)
    rows, reason = made.next_rung(table, 1.0, price)
    assert rows == []
    assert "nothing" in reason
    assert len(table.rows) <= 6 * (1 + RESTARTS)
    assert len({one.seed for one in table.rows}) <= 1 + RESTARTS


@given(left=st.floats(0.0, 1.0), rungs=st.integers(0, 4), seed=st.integers(0, 9))
def test_a_rung_costs_no_more_than_is_left(left, rungs, seed):
    made = ladder(seed=seed)
    table = climb(made, rungs)
    rows, reason = made.next_rung(table, left, price)
    spent = sum(price(one) for one in rows)
    share = SHARES.get(table.rungs if rungs else 0, 1.0)
    in_full = all(one.recipe.batches >= RECIPE.batches for one in rows)
    allowed = (1.0 if in_full else share) * left
    first = price(rows[0]) if rows else 0.0
    assert spent <= max(allowed, min(first, left)) * (1 + 1e-6)
    assert len(rows) <= MAX_RUNS
    assert bool(rows) != bool(reason)
    for one in rows if not rungs else ():
        in_full = one.cost / 12
        assert in_full <= max(MAX_SHARE * left, price(one)) * (1 + 1e-9)


@pytest.mark.parametrize("full", [10, 108])
@pytest.mark.parametrize("runs", [2.0, 3.0, 4.5])
def test_a_small_budget_trains_fewer_networks_in_full(runs, full):
    """Its share is too little for short runs of several, or short runs are full ones."""
    made = ladder(recipe=replace(RECIPE, batches=full))
    table, left = ended(Table(), [made.sized(made.first())], quality), 1.0 - 1.0 / runs
    while True:
        rows, _ = made.next_rung(table, left, lambda r: r.cost * r.recipe.batches / (runs * full))
        if not rows:
            break
        left -= sum(one.cost * one.recipe.batches for one in rows) / (runs * full)
        table = ended(table, rows, quality)
    assert left <= 0.5 / runs + 1e-9, "what is left pays for no network"
    assert all(one.rung > 0 for one in table.rows[1:] if one.recipe.batches == full > 10)
    assert sum(one.recipe.batches == full for one in table.rows) > 1


@given(st.integers(0, 20), st.integers(1, 5))
def test_the_same_runs_lead_to_the_same_proposals(seed, rungs):
    table = climb(ladder(seed=seed), rungs)
    slower = replace(table, seconds=99.0, rows=tuple(replace(r, seconds=7.0) for r in table.rows))
    one, _ = ladder(seed=seed).next_rung(table, 1.0, price)
    other, _ = ladder(seed=seed).next_rung(slower, 1.0, price)
    assert one == other


def test_another_seed_has_other_proposals():
    one = climb(ladder(), 6).rows
    assert {r.seed for r in one if r.rung < 2} == {0}
    near = [list(islice(ladder(seed=s)._neighbours(3, one, ladder(seed=s)._generator(3)), 90))
            for s in (0, 1)]  # fmt: skip
    assert [r.key[:3] for r in near[0]] != [r.key[:3] for r in near[1]]


def test_open_runs_tell_nothing():
    """Whatever their score says: a run that was cut goes on later."""
    made, table = ladder(), climb(ladder(), 1)
    last = table.rows[-1]
    cut = replace(last, status="cut", score=0.99)
    rows, _ = made.next_rung(replace(table, rows=(*table.rows[:-1], cut)), 1.0, price)
    assert cut.number not in {one.parent for one in rows}


def test_seeds_are_planted_or_grown_from_a_finished_run_with_weights():
    made, table = ladder(), climb(ladder(), 4)
    near = list(islice(made._neighbours(4, table.rows, made._generator(4)), 400))
    grown = [one for one in near if one.start is not None]
    planted = [one for one in near if one.origin == "seeds"]
    assert grown
    assert planted
    for one in grown:
        parent = table.rows[one.start]
        assert one.start == one.parent
        assert one.variant == parent.variant
        changed = [(a, b) for a, b in zip(parent.topology, one.topology, strict=True) if a != b]
        assert len(changed) == 1
        fewer = sum(map(bool, one.topology)) < sum(map(bool, parent.topology))
        more = sum(map(bool, one.topology)) > sum(map(bool, parent.topology))
        assert one.origin == ("grown" if more else "pruned")
        assert more or fewer or all(changed[0])
    bare = replace(table, rows=tuple(replace(one, saved=False) for one in table.rows))
    rows, _ = ladder().next_rung(bare, 1.0, price)
    assert all(one.start is None for one in rows), "their weights are gone"


def test_no_network_starts_from_the_weights_of_another_unless_asked():
    asked, made, table = ladder(), ladder(inherit=False), climb(ladder(), 4)
    both = (list(islice(one._neighbours(4, table.rows, one._generator(4)), 400))
            for one in (asked, made))  # fmt: skip
    for one, other in zip(*both, strict=True):
        assert other.start is None
        assert (other.topology, other.variant, other.seed) == (one.topology, one.variant, one.seed)


@pytest.mark.parametrize("origin", ["grown", "pruned"])
def test_a_grown_network_is_trained_again_from_its_own_start(origin):
    made = ladder()
    grown = row(3, 0.9, origin=origin, start=1, parent=1, topology=("mlp", ""), seed=5)
    again = made._again(grown, 4, 324)
    assert (again.start, again.origin, again.parent, again.seed) == (None, "seeds", 3, 5)
    assert (again.rung, again.recipe.batches) == (4, 324)


def test_a_search_ends_after_two_full_rungs_without_progress():
    made = ladder()
    table = climb(made, 3)
    best = max(one.merit for one in table.rows)
    rungs = []
    while True:
        rows, reason = made.next_rung(table, 1.0, price)
        if not rows:
            break
        rungs.append(table.rungs)
        table = ended(table, rows, lambda one: best - 0.2)
    assert reason == "nothing improved in 2 rungs"
    assert rungs == [3, 4]


def test_progress_keeps_it_going():
    made, score = ladder(), iter(np.linspace(0.5, 0.99, 4000))
    table = climb(made, 9, lambda one: float(next(score)))
    assert table.rungs == 9


def test_a_metric_without_a_known_worst_and_best_is_searched_as_well():
    """Lower is better, and far above 1."""
    value = iter(np.linspace(900.0, 3.0, 1000))
    made = ladder(lower_is_better=True, worst=math.nan, best=math.nan)
    table = climb(made, 9, lambda one: float(next(value)))
    assert table.rungs == 9


def test_length_pays_where_longer_runs_were_better():
    made = ladder(longer=9)
    longer = [one for one in climb(made, 5).rows if one.recipe.batches > RECIPE.batches]
    assert {one.recipe.batches for one in longer} >= {3 * RECIPE.batches}
    assert max(one.recipe.batches for one in longer) <= 9 * RECIPE.batches
    flat = climb(ladder(longer=9), 5, lambda one: 0.5 + 0.0001 * one.params)
    assert max(one.recipe.batches for one in flat.rows) == RECIPE.batches
    asked = climb(ladder(longer=1), 5)
    assert max(one.recipe.batches for one in asked.rows) == RECIPE.batches


LEVELS = ("none", "shift", "flip+shift")


def augmented(one: Row) -> float:
    """Augmentation costs short runs, and is worth more the longer they are."""
    length = math.log(one.recipe.batches / RECIPE.batches, 3)
    strength = LEVELS.index(one.recipe.augment)
    return 0.5 + 0.0001 * one.params + strength * (0.01 + 0.03 * length)


def test_every_strength_of_augmentation_is_tried_in_full_and_goes_on_where_length_pays():
    made = ladder(FakeNetworks((100, 50)), space={"augments": LEVELS})
    table = climb(made, 5, augmented)
    full = [one for one in table.rows if one.recipe.batches == RECIPE.batches and one.rung == 2]
    assert {one.recipe.augment for one in full} == set(LEVELS)
    assert len({(one.variant, one.recipe.lr) for one in full if one.recipe.augment != "none"}) == 1
    long = [one for one in table.rows if one.recipe.batches > RECIPE.batches]
    assert long[0].recipe.augment == "flip+shift"
    assert "none" not in {one.recipe.augment for one in long[:2]}, "it gained nothing from length"
    best = max(table.rows, key=lambda one: one.merit)
    assert best.recipe.augment == "flip+shift"


def test_what_may_overtake_the_best_goes_on_three_times_as_long_then_stronger_then_restarted():
    names = ("none", "shift", "flip+shift", "flip+shift+cutout", "mixup")
    scores = {"none": (0.60, 0.62), "shift": (0.55, 0.66), "flip+shift": (0.40, 0.60),
              "flip+shift+cutout": (0.40, 0.45), "mixup": (0.7, 0.64)}  # fmt: skip
    rows = [
        row(len(names) * place + n, score, recipe=replace(RECIPE, augment=name, batches=batches))
        for place, batches in enumerate((36, 108))
        for n, name in enumerate(names)
        for score in (scores[name][place],)
    ]
    made = ladder(space={"augments": names})
    rows = [replace(one, params=100, topology=("", "")) for one in rows]
    longer = list(made._longer(3, rows))
    assert {one.recipe.batches for one in longer} == {324}
    said = [(one.recipe.augment, one.seed != 0) for one in longer]
    assert said[:6] == [
        ("flip+shift", False), ("shift", False),  # .80 and .77 if they gain as much once more
        ("flip+shift+cutout", False), ("flip+shift", False),  # stronger
        ("flip+shift", True), ("shift", True),
    ]  # fmt: skip
    assert {name for name, _ in said[6:]} == {"shift"}, "the frontier"
    assert not list(made._longer(3, [one for one in rows if one.recipe.augment == "mixup"]))


@pytest.mark.parametrize("cap", [Budget(params=400), Budget(macs=800)])
def test_at_most_half_goes_to_networks_far_below_a_cap(cap):
    made = ladder(FakeNetworks(budget=cap))
    small = [row(n, params=100, macs=200) for n in range(20)]
    large = [row(20 + n, params=390, macs=780) for n in range(4)]
    chosen = made._affordable(iter([*small[:7], *large, *small[7:]]), lambda _: 0.05, 1.0, 0.4)
    assert sum(one in small for one in chosen) == 1 + 4, "the first, and half of eight"
    assert sum(one in large for one in chosen) == 3
    free = ladder()._affordable(iter(small), lambda _: 0.05, 1.0, 0.4)
    assert len(free) == 8, "without a cap none is far below it"
    first = made._affordable(iter(small[:1]), lambda _: 0.3, 1.0, 0.4)
    assert first == small[:1]


def test_runs_are_not_shorter_than_the_least_unless_a_full_one_is():
    for full in (5, 20, 60):
        table = climb(ladder(recipe=replace(RECIPE, batches=full)), 3)
        assert min(one.recipe.batches for one in table.rows) >= min(full, MIN_BATCHES)


def test_what_is_left_of_the_time_is_filled_with_the_best_that_fit():
    made, table = ladder(), climb(ladder(), 3)
    rows = made.filling(table, lambda one: 150, 2)
    assert [one.number for one in rows] == [len(table.rows), len(table.rows) + 1]
    assert {one.recipe.batches for one in rows} == {150}
    assert rows[0].parent == max(table.rows, key=lambda one: one.merit).number
    assert all(one.rung == table.rungs and one.params for one in rows)
    assert rows[0].key != rows[1].key
    assert made.filling(table, lambda one: RECIPE.batches // 9 - 1, 2) == []
    lengths = [one.recipe.batches for one in made.filling(table, lambda one: 10**6, 1)]
    assert lengths == [9 * RECIPE.batches]


def test_the_last_seconds_go_to_networks_that_have_not_been_trained_for_longer():
    made, full = ladder(), RECIPE.batches
    rows = (
        row(0, 0.9),
        row(1, 0.8, recipe=replace(RECIPE, batches=full // 9)),  # row 0's network, in part
        row(2, 0.7, variant=1, recipe=replace(RECIPE, batches=full // 9)),
        row(3, 0.6, variant=2, recipe=replace(RECIPE, batches=full // 4)),
    )
    found = made.filling(Table(rows), lambda one: full // 5, 4)
    assert [(one.parent, one.recipe.batches) for one in found] == [(2, full // 5)]
    assert len(made.filling(Table(rows), lambda one: full // 4 + 1, 4)) == 2


def test_runs_beside_the_longest_one_are_new_ones_of_the_same_rung():
    """Which they are depends on the rungs before alone."""
    made, table = ladder(), climb(ladder(), 3, left=2.0)
    few = replace(table, rows=table.rows[:-1])
    more = [one for one, _ in zip(made.meanwhile(few), range(6), strict=False)]
    assert {one.rung for one in more} == {2}
    assert {one.recipe.batches for one in more} == {RECIPE.batches}
    assert not {one.key for one in more} & {one.key for one in few.rows}
    assert all(few.rows[one.parent].rung < 2 for one in more), "the rung itself tells nothing yet"
    first = Table((made.sized(made.first()),))
    assert {one.rung for one in made.meanwhile(first)} == {0}
    lengths = [one.recipe.batches for one in made.meanwhile(first)]
    assert lengths == sorted(lengths), "short ones first"
    assert set(lengths) == {RECIPE.batches // 9, RECIPE.batches // 3}


def test_the_rate_rises_then_falls_to_0():
    recipe = Recipe("sgd", 0.3, 0.0, 0.0, 8, 200)
    rates = [recipe.rate(batch) for batch in range(200)]
    top = int(np.argmax(rates))
    assert top == 10, "a twentieth"
    assert rates[top] == 0.3
    assert all(a < b for a, b in pairwise(rates[: top + 1]))
    assert all(a > b for a, b in pairwise(rates[top:]))
    assert rates[-1] < 1e-3 * 0.3
    for batches in (1, 2, 5):
        short = Recipe("sgd", 0.3, 0.0, 0.0, 8, batches)
        assert short.rate(0) == 0.15, "a warm-up of one batch, at least"
    turns = [0.5 * (1 + math.cos(math.pi * n / 4)) for n in range(4)]
    assert [short.rate(batch) / 0.3 for batch in range(1, 5)] == pytest.approx(turns)
