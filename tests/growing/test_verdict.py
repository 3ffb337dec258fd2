"""The first line of a result says what happened, and no more than was seen."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from torch import nn

import esper
from esper.growing.folder import GrowInfo
from esper.growing.result import NetworkRecord
from esper.growing.verdict import Facts, Tried, gain_of, tried_of, verdict
from esper.leyline.statistics import Estimate
from esper.tasks.measuring import Difference
from esper.tasks.metric_forms import MeanMetric, absolute_errors, right
from esper.tasks.row_terms import ClassTerms, NumberTerms
from grow_support import quick_search
from search_support import RECIPE, row

ENOUGH = Tried(
    networks=20, in_full=6, host_in_full=True, diverged=0, sizes=(200, 500, 2000),
    rates=(0.003, 0.009), cap=2400, batches=1500, wanted_batches=1500, complete=True,
)  # fmt: skip
LABELS = ClassTerms(name="cross_entropy", shape=(2,), axis=0)
NUMBERS = NumberTerms(name="mae", shape=(1,))
ACCURACY = MeanMetric(name="accuracy", reading=LABELS, terms=right)
MAE = MeanMetric(
    name="mae", reading=NUMBERS, terms=absolute_errors, higher_is_better=False, in_points=False
)


def network(number: int, params: int, score: float, variant: str = "") -> NetworkRecord:
    return NetworkRecord(
        number=number, variant=variant, topology=(), origin="width", recipe=RECIPE, params=params,
        macs=params, val_score=score, test_score=score, test_se=0.01, runs=1.0,
    )  # fmt: skip


HOST = network(0, 500, 0.9)
RIGHT = Facts(
    metric=ACCURACY, pick=HOST, host=HOST, constant=0.5,
    difference=Difference(0.0, 0.0, 0.0, 100), tried=ENOUGH,
)  # fmt: skip
WIDER = replace(RIGHT, pick=network(1, 2000, 0.925, "x2"),
                difference=Difference(0.025, 0.005, 0.045, 100))  # fmt: skip


def but(facts: Facts, **tried) -> Facts:
    return replace(facts, tried=replace(facts.tried, **tried))


def test_a_model_is_right_if_others_were_trained_in_full_and_lost():
    assert verdict(RIGHT) == (
        "your model is already right: 500 parameters, test accuracy 0.9000; none of 6 networks of "
        "200 to 2,000 parameters that were trained in full was better on validation"
    )


@pytest.mark.parametrize(
    ("tried", "words"),
    [
        (
            {"networks": 1, "in_full": 1, "sizes": (500,), "rates": (0.003,)},
            "only your model was trained, at one learning rate",
        ),
        ({"sizes": (500,), "cap": None}, "20 networks tried, 6 in full, none of another size"),
        ({"sizes": (200, 500), "cap": None}, "6 in full, none larger than your model"),
        ({"rates": (0.003,)}, "only one learning rate in full"),
        ({"batches": 88, "wanted_batches": 1500}, "cut to 6 % of their length (88 of 1,500 batch"),
        ({"cap": 20_000}, "the largest network trained in full has 2,000 of 20,000 parameters"),
        ({"cap": 20_000, "sizes": ()}, "no network was trained in full"),
        ({"complete": False}, "the search was interrupted"),
        ({"host_in_full": False}, "your model itself was not trained in full"),
        ({"diverged": 3}, "3 of 20 networks diverged"),
    ],
)
def test_it_is_inconclusive_after_less_and_says_why(tried, words):
    line = verdict(but(RIGHT, **tried))
    assert line.startswith("inconclusive: ")
    assert words in line
    assert line.endswith("your model (500 parameters, test accuracy 0.9000) was not beaten on "
                         "validation")  # fmt: skip


def test_of_one_network_one_reason_is_enough():
    alone = but(RIGHT, networks=1, in_full=1, sizes=(500,), rates=(0.003,), cap=None)
    assert verdict(alone).startswith("inconclusive: only your model was trained, at one learning "
                                     "rate; your model (500")  # fmt: skip


def test_a_cap_that_the_model_fills_leaves_smaller_sizes_to_try():
    assert verdict(but(RIGHT, sizes=(200, 500), cap=500)).startswith("your model is already right")


@pytest.mark.parametrize(
    ("value", "low", "high", "words"),
    [
        (0.025, 0.005, 0.045, "better than your model by 2.5 points (95 % +0.5 to +4.5, n = 100)"),
        (0.01, -0.01, 0.03, "level with your model (+1.0 points, 95 % -1.0 to +3.0, n = 100)"),
        (-0.02, -0.03, -0.01, "worse than your model by 2.0 points (95 % -3.0 to -1.0, n = 100)"),
        (0.0, 0.0, 0.0, "level with your model (+0.0 points, 95 % +0.0 to +0.0, n = 100)"),
        (0.5, math.nan, math.nan, "+50.0 points against your model (n = 100)"),
    ],
)
def test_a_difference_has_its_interval_and_the_number_of_samples(value, low, high, words):
    line = verdict(replace(WIDER, difference=Difference(value, low, high, 100)))
    assert line == (f"width x2: 2,000 parameters (your model: 500), test accuracy 0.9250, {words}")


def test_what_a_cap_below_the_model_costs_is_said():
    small = replace(WIDER, pick=network(1, 200, 0.88, "x0.5"), reference=True)
    worse = Difference(-0.02, -0.03, -0.01, 100)
    assert verdict(replace(small, difference=worse)) == (
        "width x0.5: 200 parameters (your model: 500), test accuracy 0.8800, 2.0 points below "
        "your model (95 % -3.0 to -1.0, n = 100)"
    )
    assert "level with your model" in verdict(replace(small, difference=RIGHT.difference))
    better = verdict(replace(small, difference=Difference(0.02, 0.01, 0.03, 100)))
    assert "better than your model by 2.0 points" in better


def test_points_are_for_shares_alone_and_lower_may_be_better():
    mae = replace(
        WIDER, metric=MAE, constant=40.0,
        pick=replace(WIDER.pick, test_score=31.0), host=replace(HOST, test_score=35.0),
        difference=Difference(-4.0, -6.5, -1.5, 100),
    )  # fmt: skip
    line = verdict(mae)
    assert "test mae 31.0000, better than your model by 4 (95 % +1.5 to +6.5, n = 100)" in line
    assert "points" not in line
    assert gain_of(mae) == Estimate(4.0, 1.5, 6.5)
    assert "below a constant" in verdict(replace(mae, constant=30.0))


def test_a_better_network_of_cut_runs_says_so():
    line = verdict(but(WIDER, batches=88, wanted_batches=1500, cap=20_000, complete=False))
    assert line.startswith("width x2: 2,000 parameters")
    for words in ("88 of 1,500 batches", "2,000 of 20,000 parameters", "was interrupted"):
        assert words in line


@pytest.mark.parametrize("facts", [RIGHT, WIDER])
def test_what_a_constant_beats_is_nothing_to_be_proud_of(facts):
    line = verdict(replace(facts, constant=0.95))
    assert line.startswith("below a constant predictor: test accuracy 0.9")
    assert "predicting the same for every sample has 0.9500 (n = 100)" in line
    assert "points" not in line
    level = verdict(replace(facts, constant=facts.pick.test_score))
    assert level.startswith("no better than a constant predictor")
    assert "constant" not in verdict(replace(facts, constant=math.nan))


def test_divergence_comes_first():
    lost = replace(HOST, test_score=math.nan)
    nothing = Difference(math.nan, math.nan, math.nan, 100)
    facts = but(replace(RIGHT, pick=lost, host=lost, difference=nothing), diverged=20)
    assert verdict(facts).startswith("diverged: outputs of 20 of 20 networks became NaN or infinit")
    assert "lower lr=" in verdict(facts)
    alone = but(facts, networks=1, diverged=1)
    assert verdict(alone).startswith("diverged: outputs of your model became NaN")
    line = verdict(but(replace(WIDER, host=lost, difference=nothing), diverged=1))
    assert "your model diverged" in line
    assert "nan" not in line


def info_of(**caps: float) -> GrowInfo:
    """Full runs have 100 batches of the usual size."""
    budget, size = esper.Budget(**caps), RECIPE.batch_size
    found = SimpleNamespace(length=100, full_length=0, batch_size=size, budget=budget)
    return cast(GrowInfo, found)


def test_what_was_tried_is_read_from_the_runs():
    """A short run, a cut one and one that diverged were not trained in full."""
    first = row(0, 0.8, params=50, trained=100)
    faster = replace(RECIPE, lr=0.03)
    found = tried_of(
        [
            first,
            replace(first, number=1, params=80, recipe=faster),
            replace(first, number=2, params=90, trained=60),
            replace(first, number=3, params=95, trained=100, status="cut"),
            replace(first, number=4, trained=25, score=math.nan, diverged=True),
            replace(first, number=5, trained=0, status="planned"),
            replace(first, number=6, params=600, macs=2000),
            replace(first, number=7, trained=25, score=math.nan),
        ],
        info_of(macs=1e3),
        complete=True,
    )
    assert found == Tried(
        networks=7, in_full=3, host_in_full=True, diverged=2, sizes=(50, 80), rates=(0.01, 0.03),
        cap=None, batches=100, wanted_batches=100, complete=True,
    )  # fmt: skip


def test_the_model_was_trained_in_full_though_a_shorter_run_of_it_is_better():
    """The best run of the model stands beside the pick, whatever its length."""
    first = row(0, 0.8, params=50, trained=100)
    shorter = replace(first, number=1, score=0.9, trained=30, recipe=replace(RECIPE, batches=30))
    other = replace(first, number=2, origin="width", params=80)
    info = info_of()
    assert tried_of([first, shorter, other], info, complete=True).host_in_full
    assert not tried_of([shorter, other], info, complete=True).host_in_full


@pytest.mark.parametrize(
    ("times", "trained", "full"),
    [(2, 50, True), (2, 48, False), (0.5, 200, True), (0.5, 100, False), (3, 33, True)],
)
def test_a_run_is_as_long_as_its_samples_are_many(times, trained, full):
    first = row(0, 0.8, params=50, trained=100)
    size = int(times * RECIPE.batch_size)
    recipe = replace(RECIPE, batch_size=size, batches=trained, lr=0.03)
    other = replace(first, number=1, params=80, recipe=recipe, trained=trained)
    found = tried_of([first, other], info_of(), complete=True)
    assert found.in_full == 1 + full
    assert (80 in found.sizes) == (0.03 in found.rates) == full


# ---- from one end to the other -------------------------------------------------------------------


def search(folder, shift: float = 0.0, runs: float = 2.0, **settings) -> esper.GrowResult:
    """Regression; `shift`: of the targets in test."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((60, 3)).astype(np.float32)
    y = x[:, 0] + 0.1 * generator.standard_normal(60).astype(np.float32)
    return quick_search(
        folder,
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)),
        [(x[:30], y[:30]), (x[30:45], y[30:45]), (x[45:], y[45:] + shift)],
        esper.Budget(host_runs=runs),
        **{"slots": 1, "widths": (), "epochs": 2} | settings,
    )


def test_a_search_that_diverges_says_so(tmp_path):
    result = search(tmp_path, optimizer="sgd", lr=1e30)
    assert result.verdict.startswith("diverged: outputs of ")
    assert math.isnan(result.best.test_score)


def test_a_search_whose_networks_a_constant_beats_says_so(tmp_path):
    result = search(tmp_path, runs=1, lr=1e-9, epochs=1, seed=2)
    assert result.verdict.startswith("below a constant predictor: test r2 -")
    assert result.best.test_score < 0


def test_one_network_proves_nothing(tmp_path):
    result = search(tmp_path, runs=1.0, lr=0.1, epochs=20)
    assert result.verdict.startswith("inconclusive: only your model was trained, at one learning")


def test_that_the_pick_was_trained_for_longer_is_said():
    host, pick = (
        replace(one, recipe=replace(RECIPE, batches=batches))
        for one, batches in ((HOST, 1000), (WIDER.pick, 3100))
    )
    assert verdict(replace(WIDER, host=host, pick=pick)).endswith(
        "; trained 3.1 times as long as your model"
    )
    same = replace(pick, recipe=replace(RECIPE, batches=1200))
    assert "as long as" not in verdict(replace(WIDER, host=host, pick=same))
