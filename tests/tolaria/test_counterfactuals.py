"""Coalitions are those promised; what they tell equals separate forwards and closed forms."""

from __future__ import annotations

import itertools
import math
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.kasmina import Lifecycle, LifecycleConfig, Population
from esper.kasmina.rows.rows import FROM_INPUT, make_plan
from esper.leyline import BlendStyle, SeedStage
from esper.leyline.signals import CounterfactualGap
from esper.leyline.streams import stream_keys
from esper.tolaria.batch_ops import (
    RowTotals,
    classification_merit,
    language_merit,
    process_fused_val_batch,
)
from esper.tolaria.counterfactual_eval import (
    CoalitionPlan,
    CounterfactualConfig,
    attribute,
    plan_coalitions,
)
from support import batch, good_signals, learnable, make_population, pass_step, refused

SLOTS = ("r0c0", "r1c0", "r0c1", "r1c1", "r0c2", "r1c2")
SEED, ROUND, STEP = 11, 2, 4
EXECUTORS = ["vmap", "loop"]
DEFAULT = CounterfactualConfig()


def grown(executor: str, members: int = 6) -> Population:
    """Member e has e % 6 blended seeds: alphas between 0 and 1, three styles, three stages."""
    population = make_population(members, executor, slots=SLOTS)
    choice = np.random.default_rng(3)
    pairs = [(e, s) for e in range(members) for s in choice.permutation(6)[: e % 6]]
    for number, (e, s) in enumerate(pairs):
        population.germinate(
            [e],
            int(s),
            ("conv_light", "norm", "attention")[number % 3],
            BlendStyle(number % 3),
            tempo=(3, 8)[number // 3 % 2],
        )
    population.germinate([0], 2, "norm")  # incubates: never blended, never switched
    pass_step(population)
    if pairs:
        at = np.array(pairs)
        population.advance(at[:, 0], at[:, 1])
        for _ in range(4):
            pass_step(population)
        holding = np.argwhere(population.lifecycle.stage_ES == SeedStage.HOLDING)[::2]
        population.fossilize(holding[:, 0], holding[:, 1])
    with torch.no_grad():  # seeds are born near the identity: make them matter
        generator = torch.Generator().manual_seed(1)
        for bank in population.network.banks.values():
            bank.flat_EP += 0.7 * torch.randn(bank.flat_EP.shape, generator=generator)
    return population


def measure(population: Population, plan: CoalitionPlan, merit, x, y) -> RowTotals:
    totals = RowTotals.zeros(plan.table.rows, population.device)
    for part in (slice(0, 20), slice(20, None)):  # the sums run over several batches
        process_fused_val_batch(population, x[:, part], y[:, part], merit, plan.table, totals)
    return totals


def attributed(plan: CoalitionPlan, totals: RowTotals):
    return attribute(
        plan,
        totals.merit_R.numpy(),
        totals.gain_R.numpy(),
        totals.gain_square_R.numpy(),
        totals.samples,
        totals.loss_R.numpy(),
    )


def images():
    return batch(1, seed=9, size=48)


class BruteForce:
    """One member's coalitions, each by a forward of its own through a plain module."""

    def __init__(self, population: Population, member: int, merit, x, y) -> None:
        self.population, self.member, self.merit, self.x, self.y = population, member, merit, x, y
        self.alpha_S = population.lifecycle.alpha_ES[member]
        self.seeds = np.flatnonzero(self.alpha_S > 0).tolist()
        self.known: dict[frozenset, np.ndarray] = {}

    def samples(self, off) -> np.ndarray:
        off = frozenset(off)
        if off not in self.known:
            model = self.population.member(self.member)
            for slot in off:
                model.seeds[SLOTS[slot]].alpha = 0.0
            with torch.no_grad():
                logits = model(self.x[0])[None]
            self.known[off] = self.merit(logits, self.y)[0].double().numpy()
        return self.known[off]

    def value(self, on) -> float:
        return float(self.samples(set(self.seeds) - set(on)).mean())

    def contribution(self, slot) -> tuple[float, float]:
        gain = self.samples([]) - self.samples([slot])
        return gain.mean(), gain.std(ddof=1) / math.sqrt(len(gain))

    def interaction(self, slot) -> float:
        seeds = set(self.seeds)
        return sum(
            self.value(seeds)
            - self.value(seeds - {slot})
            - self.value(seeds - {other})
            + self.value(seeds - {slot, other})
            for other in seeds - {slot}
        )


@cache
def kept(executor: str) -> Population:
    """One `grown` that several tests look at and none changes."""
    return grown(executor)


@cache
def brute_force(executor: str, member: int, merit) -> BruteForce:
    """Of `kept` on `images`; the coalitions it has seen serve other budgets too."""
    return BruteForce(kept(executor), member, merit, *images())


def shapley_of(value, seeds, orders) -> dict[int, float]:
    """Mean gain of each seed as it joins, over the orders given."""
    totals = dict.fromkeys(seeds, 0.0)
    for order in orders:
        for place, seed in enumerate(order):
            totals[seed] += value(order[: place + 1]) - value(order[:place])
    return {seed: total / len(orders) for seed, total in totals.items()}


def drawn_orders(member: int, seeds: list[int], budget: int, seed=SEED, round_=ROUND, step=STEP):
    """The permutations the plan promises, and the distinct coalitions they need; plain Python."""
    full = frozenset(seeds)
    known = {full, frozenset()} | {full - {seed} for seed in seeds}
    orders = []
    for number in range(1000):
        keys = [
            stream_keys(
                seed, "round", round_, "counterfactual", "step", step, "member", member,
                "permutation", number, "seed", j,
            )
            for j in range(len(seeds))
        ]  # fmt: skip
        order = [seeds[j] for j in np.argsort(keys)]
        pair = [order, order[::-1]]
        wanted = known | {frozenset(o[:k]) for o in pair for k in range(len(o))}
        if number and (len(wanted) > budget or number >= (budget - len(seeds)) // 2):
            break
        known, orders = wanted, orders + pair
    return orders, known


def made_up(on_ES: np.ndarray) -> Lifecycle:
    """A lifecycle with seeds on probation where told; enough to plan for."""
    members, slots = on_ES.shape
    names = [f"r0c{s}" for s in range(slots)]
    life = Lifecycle(members, names, np.ones((slots, 1), dtype=np.bool_), LifecycleConfig())
    life.stage_ES[on_ES] = SeedStage.HOLDING
    life.alpha_ES[on_ES] = 1.0
    life.blueprint_ES[on_ES] = 0
    return life


def plan_for(life: Lifecycle, config=DEFAULT, seed=SEED, round_=ROUND, step=STEP) -> CoalitionPlan:
    people = SimpleNamespace(lifecycle=life, member_ids=np.arange(life.members))
    return plan_coalitions(people, config, seed, round_, step)


def coalitions(plan: CoalitionPlan, life: Lifecycle, member: int) -> list[tuple[bool, ...]]:
    """Which seeds are on in each row of a member, main row first."""
    table = plan.table
    alpha = np.where(
        np.arange(len(life.slots)) >= table.start_R[:, None],
        table.alpha_RS,
        life.alpha_ES[table.member_R],
    )
    return [tuple(a > 0) for a in alpha[table.member_R == member]]


# ---- against separate forwards ------------------------------------------------------------


@pytest.mark.parametrize(
    ("executor", "merit", "budget"),
    [
        ("vmap", classification_merit, 1),
        ("vmap", classification_merit, 32),
        ("loop", language_merit, 16),
    ],
)
def test_equal_to_separate_forwards(executor, merit, budget):
    population, (x, y) = kept(executor), images()
    config = CounterfactualConfig(budget=budget)
    plan = plan_coalitions(population, config, SEED, ROUND, STEP)
    found = attributed(plan, measure(population, plan, merit, x, y))
    for member in range(6):
        force = brute_force(executor, member, merit)
        seeds, n = force.seeds, member
        assert len(seeds) == n
        exact = n <= 3 or 2**n <= budget
        assert found.exact_E[member] == (exact and n > 0)
        orders, known = (
            (list(map(list, itertools.permutations(seeds))), 2**n)
            if exact
            else drawn_orders(member, seeds, budget)
        )
        shapley = shapley_of(force.value, seeds, orders)
        for slot in range(6):
            got = [found.contribution_ES, found.contribution_se_ES, found.shapley_ES]
            got = [float(values[member, slot]) for values in got]
            if slot not in seeds:
                assert np.isnan(got).all()
                assert np.isnan(found.interaction_ES[member, slot])
                continue
            np.testing.assert_allclose(
                got, [*force.contribution(slot), shapley[slot]], atol=1e-6, rtol=1e-5
            )
            pairs = [frozenset(set(seeds) - {slot, other}) for other in set(seeds) - {slot}]
            reported = exact or all(pair in known for pair in pairs)
            expected = force.interaction(slot) if reported else np.nan
            np.testing.assert_allclose(found.interaction_ES[member, slot], expected, atol=2e-6)
        size = known if isinstance(known, int) else len(known)
        assert found.coalitions_E[member] == size
    assert plan.table.rows == found.coalitions_E.sum()
    assert found.gap_E.tolist() == [CounterfactualGap.NO_SEED] + 5 * [CounterfactualGap.NONE]


def test_the_seeds_of_these_tests_are_mixed():
    life = grown("vmap").lifecycle
    on = life.alpha_ES > 0
    assert set(life.stage_ES[on]) == {SeedStage.BLENDING, SeedStage.HOLDING, SeedStage.FOSSILIZED}
    assert set(life.style_ES[on]) == set(BlendStyle)
    assert ((life.alpha_ES[on] > 0) & (life.alpha_ES[on] < 1)).any()


def test_main_rows_are_the_members_as_they_stand():
    population, (x, y) = grown("vmap"), images()
    plan = plan_coalitions(population, DEFAULT, SEED, ROUND, STEP)
    totals = measure(population, plan, classification_merit, x, y)
    whole = population.evaluate(x, y)
    assert torch.equal(totals.merit_R[:6], whole.correct_R.double())
    assert not totals.gain_R[:6].any()


def test_a_randomised_seed_is_worth_less():
    population = make_population(2, "vmap")
    population.germinate([0, 1], "r0c1", "conv_light")
    draw = learnable("cnn", 2)
    pass_step(population)
    population.advance([0, 1], "r0c1")
    for _ in range(60):
        population.begin_step()
        population.train_batch(*draw(16))
        population.end_step(good_signals(population))
    x, y = draw(200)
    x, y = x[:1], y[:1]
    plan = plan_coalitions(population, DEFAULT, SEED, ROUND, STEP)
    before = attributed(plan, measure(population, plan, classification_merit, x, y))
    key = (1, population.blueprints.index("conv_light"))
    with torch.no_grad():
        row = population.network.banks[key].flat_EP[0]
        row.copy_(3.0 * torch.randn(row.shape, generator=torch.Generator().manual_seed(0)))
    after = attributed(plan, measure(population, plan, classification_merit, x, y))
    assert after.contribution_ES[0, 1] < before.contribution_ES[0, 1] - 0.1
    assert after.shapley_ES[0, 1] < before.shapley_ES[0, 1] - 0.1
    assert after.contribution_ES[1, 1] == before.contribution_ES[1, 1]


# ---- made-up values -----------------------------------------------------------------------


def table_totals(plan: CoalitionPlan, life: Lifecycle, values) -> tuple[np.ndarray, np.ndarray]:
    """(merit, gain) of each row as if its value were `values(member, on)`, for 10 samples."""
    per_member = {e: iter(coalitions(plan, life, e)) for e in range(plan.members)}
    merit_R = np.array([10 * values(int(e), next(per_member[int(e)])) for e in plan.table.member_R])
    return merit_R, merit_R[plan.table.member_R] - merit_R


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=5),
    st.integers(1, 70),
    st.integers(0, 2**32),
)
def test_shapley_adds_up_and_equals_the_mean_over_orders(on, budget, seed):
    life = made_up(np.array(on))
    plan = plan_for(life, CounterfactualConfig(budget=budget), seed=seed)
    make_plan(plan.table, life, torch.device("cpu"))  # refuses what breaks the rules of rows
    random = np.random.default_rng(seed)
    table: dict[tuple, float] = {}
    value = lambda e, row: table.setdefault((e, row), random.normal())  # noqa: E731
    merit_R, gain_R = table_totals(plan, life, value)
    assert len(table) == plan.table.rows, "each coalition has one row"
    found = attribute(plan, merit_R, gain_R, gain_R**2, 10)
    for e, row in enumerate(np.array(on)):
        seeds = np.flatnonzero(row).tolist()
        n = len(seeds)
        if n == 0:
            assert found.gap_E[e] == CounterfactualGap.NO_SEED
            assert np.isnan(found.shapley_ES[e]).all()
            continue
        mine = [coalition for member, coalition in table if member == e]
        exact = n <= 3 or 2**n <= budget
        assert found.exact_E[e] == exact
        if exact:
            orders = list(map(list, itertools.permutations(seeds)))
            assert len(mine) == 2**n
        else:
            orders, known = drawn_orders(e, seeds, budget, seed=seed)
            assert {frozenset(np.flatnonzero(c).tolist()) for c in mine} == known
            assert len(mine) <= max(budget, 3 * n - 2)
        assert found.coalitions_E[e] == len(mine)
        as_row = lambda chosen: tuple(s in chosen for s in range(7))  # noqa: E731
        own = lambda chosen: table[e, as_row(chosen)]  # noqa: B023, E731
        expected = shapley_of(own, seeds, orders)
        np.testing.assert_allclose(
            found.shapley_ES[e, seeds], [expected[s] for s in seeds], atol=2e-6
        )
        total = own(seeds) - own([])
        assert abs(found.shapley_ES[e, seeds].astype(np.float64).sum() - total) < 3e-6


def test_leave_one_out_and_all_off_are_always_there():
    life = made_up(np.ones((1, 6), dtype=np.bool_))
    rows = set(coalitions(plan_for(life, CounterfactualConfig(budget=1)), life, 0))
    assert tuple([True] * 6) in rows
    assert tuple([False] * 6) in rows
    assert all(tuple(s != off for s in range(6)) in rows for off in range(6))


def test_opposite_orders_come_in_pairs():
    life = made_up(np.ones((3, 6), dtype=np.bool_))
    plan = plan_for(life, CounterfactualConfig(budget=40))
    for member in range(3):
        rows = {row for row in coalitions(plan, life, member) if 1 < sum(row) < 5}
        assert len(rows) >= 8
        assert {tuple(not on for on in row) for row in rows} == rows


def test_more_budget_buys_more_coalitions_and_better_values():
    """Sampled values approach the exact ones."""
    life = made_up(np.ones((40, 6), dtype=np.bool_))
    random = np.random.default_rng(0)
    table: dict[tuple, float] = {}
    value = lambda e, row: table.setdefault((e, row), random.normal())  # noqa: E731
    found, counts = {}, {}
    for budget in (16, 32, 64):
        plan = plan_for(life, CounterfactualConfig(budget=budget))
        merit_R, gain_R = table_totals(plan, life, value)
        found[budget] = attribute(plan, merit_R, gain_R, gain_R**2, 10).shapley_ES
        counts[budget] = plan.coalitions_E.mean()
    assert counts[16] < counts[32] < counts[64] == 64
    errors = {b: np.abs(found[b] - found[64]).mean() for b in (16, 32)}
    assert 0 < errors[32] < errors[16]


# ---- rows and streams ---------------------------------------------------------------------


def test_rows_begin_at_the_first_switched_slot_from_their_own_member():
    life = made_up(np.random.default_rng(0).random((9, 6)) < 0.6)
    plan = plan_for(life)
    table = plan.table
    assert table.member_R[:9].tolist() == list(range(9))
    assert (table.start_R[:9] == FROM_INPUT).all()
    assert np.array_equal(table.alpha_RS[:9], life.alpha_ES)
    late = np.arange(9, table.rows)
    off = (table.alpha_RS == 0) & (life.alpha_ES[table.member_R] > 0)
    assert off[late].any(axis=1).all()
    assert np.array_equal(table.start_R[late], off[late].argmax(axis=1))
    assert np.array_equal(table.source_R[late], table.member_R[late])
    assert not table.shadow_R.any()


def test_what_is_not_switched_keeps_its_alpha():
    life = made_up(np.ones((1, 3), dtype=np.bool_))
    life.stage_ES[0, 1] = SeedStage.BLENDING
    life.alpha_ES[0, 1] = 0.25
    assert set(plan_for(life).table.alpha_RS[:, 1].tolist()) == {0.0, 0.25}


@pytest.mark.parametrize("stage", [SeedStage.GERMINATED, SeedStage.TRAINING, SeedStage.BLENDING])
def test_seeds_at_alpha_0_are_not_switched(stage):
    life = made_up(np.ones((2, 3), dtype=np.bool_))
    life.stage_ES[0, 1], life.alpha_ES[0, 1] = stage, 0.0
    plan = plan_for(life)
    assert plan.seeds_E.tolist() == [2, 3]
    assert plan.coalitions_E.tolist() == [4, 8]


def test_a_members_plan_does_not_depend_on_the_others():
    on_ES = np.random.default_rng(1).random((12, 7)) < 0.75
    config = CounterfactualConfig(budget=20)
    many, few = made_up(on_ES), made_up(on_ES[:5])
    plan_many, plan_few = plan_for(many, config), plan_for(few, config)
    assert (plan_few.seeds_E > 4).sum() >= 2, "some are sampled"
    for member in range(5):
        mine = coalitions(plan_many, many, member)
        assert mine == coalitions(plan_few, few, member)


@pytest.mark.parametrize("other", [{"seed": 12}, {"round_": 3}, {"step": 5}])
def test_other_streams_draw_other_orders(other):
    life = made_up(np.ones((8, 6), dtype=np.bool_))
    one, two = plan_for(life), plan_for(life, **other)
    rows = [[frozenset(coalitions(plan, life, e)) for e in range(8)] for plan in (one, two)]
    assert rows[0] != rows[1]
    assert len(set(rows[0])) > 1, "members draw their own"


def test_plans_repeat():
    life = made_up(np.ones((8, 6), dtype=np.bool_))
    one, two = plan_for(life), plan_for(life)
    assert np.array_equal(one.table.alpha_RS, two.table.alpha_RS)


# ---- gaps ---------------------------------------------------------------------------------


def test_stride_measures_every_so_many_steps():
    life = made_up(np.ones((3, 2), dtype=np.bool_))
    config = CounterfactualConfig(stride=3)
    rows = [plan_for(life, config, step=step).table.rows for step in range(7)]
    assert rows == [12, 3, 3, 12, 3, 3, 12]
    plan = plan_for(life, config, step=1)
    zeros = np.zeros(3)
    found = attribute(plan, zeros, zeros, zeros, 10)
    assert (found.gap_E == CounterfactualGap.STRIDE).all()
    assert np.isnan(found.contribution_ES).all()
    assert np.isnan(found.shapley_ES).all()
    assert found.coalitions_E.tolist() == [1, 1, 1]
    assert not found.exact_E.any()


@pytest.mark.parametrize("place", ["main", "coalition", "loss"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_member_that_is_not_finite_is_left_out_alone(place, bad):
    life = made_up(np.ones((3, 5), dtype=np.bool_))
    plan = plan_for(life)
    random = np.random.default_rng(0)
    merit_R, loss_R = random.random(plan.table.rows), random.random(plan.table.rows)
    whole = attribute(plan, merit_R, merit_R, merit_R, 10, loss_R)
    row = 2 if place == "main" else int(np.flatnonzero(plan.table.member_R == 2)[-1])
    broken = loss_R if place == "loss" else merit_R
    broken[row] = bad
    found = attribute(plan, merit_R, merit_R, merit_R, 10, loss_R)
    assert found.gap_E.tolist() == [0, 0, CounterfactualGap.NON_FINITE]
    for name in ("contribution_ES", "contribution_se_ES", "shapley_ES", "interaction_ES"):
        assert np.isnan(getattr(found, name)[2]).all()
        assert np.array_equal(getattr(found, name)[:2], getattr(whole, name)[:2], equal_nan=True)
    assert np.isfinite(found.shapley_ES[:2]).all()


def test_nan_weights_are_seen_though_classes_are_predicted():
    population, (x, y) = grown("vmap"), images()
    population.network.host.flat_EP.detach()[4] = float("nan")
    plan = plan_coalitions(population, DEFAULT, SEED, ROUND, STEP)
    found = attributed(plan, measure(population, plan, classification_merit, x, y))
    assert found.gap_E.tolist() == [CounterfactualGap.NO_SEED, 0, 0, 0, 3, 0]


def test_standard_error_is_paired_with_n_minus_1():
    life = made_up(np.ones((1, 1), dtype=np.bool_))
    plan = plan_for(life)
    gain_N = np.random.default_rng(0).normal(0.1, 0.5, 31)
    totals = [np.array([0.0, total]) for total in (gain_N.sum(), (gain_N**2).sum())]
    found = attribute(plan, np.zeros(2), *totals, 31)
    assert math.isclose(found.contribution_ES[0, 0], gain_N.mean(), rel_tol=1e-6)
    expected = gain_N.std(ddof=1) / math.sqrt(31)
    assert math.isclose(found.contribution_se_ES[0, 0], expected, rel_tol=1e-6)
    one = attribute(plan, np.zeros(2), *totals, 1)
    assert np.isnan(one.contribution_se_ES).all()


def test_wrong_use_is_named():
    assert "stride=0" in refused(lambda: CounterfactualConfig(stride=0))
    assert "budget=0" in refused(lambda: CounterfactualConfig(budget=0))
    assert "images=0" in refused(lambda: CounterfactualConfig(images=0))
    wide = made_up(np.ones((1, 63), dtype=np.bool_))
    assert "63 blended seeds" in refused(lambda: plan_for(wide))
