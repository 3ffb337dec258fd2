"""Widths of a search: up to the widest that fits, and the same ones after a resume."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from esper.growing.variants import Variant

import esper
from esper.growing.topologies import TopologySpace
from esper.growing.widths import COUNT, WIDEST, named_widths, spread_widths, width_name
from esper.kasmina.caps import SeedCosts
from esper.kasmina.seed_costs import TrainingCosts
from esper.leyline.errors import EsperError

WIDTH = 10


def params(width: int) -> int:
    """Parameters of a network with two layers of a width."""
    return 3 * width + width * width


def variant(factor: float, cap: float, macs_cap: float = math.inf) -> Variant:
    """The network at a multiple of its width; a network has ten MACs per parameter."""
    size = params(max(1, round(factor * WIDTH)))
    if size > cap or 10 * size > macs_cap:
        raise EsperError("too large")
    empty = np.zeros((1, 0), dtype=np.int64)
    costs = SeedCosts(size, 10 * size, empty, empty, np.zeros(1, dtype=np.int64))
    training = TrainingCosts(30 * size, np.zeros(1, np.int64), empty, empty, empty)
    space = TopologySpace((), empty > 0, costs, training, cap, macs_cap)
    return Variant(width_name(factor), None, space, size / params(WIDTH))


def spread(cap: float = math.inf, most_cost: float = math.inf, macs_cap: float = math.inf):
    base = variant(1.0, cap, macs_cap)
    found = spread_widths(lambda f: variant(f, cap, macs_cap), base, most_cost)
    return [v.space.costs.host_params for v in found]


@pytest.mark.parametrize("cap", [140, 200, 400, 1000, 2000, 9000])
def test_the_widest_network_under_a_cap_is_among_them(cap):
    sizes = spread(cap)
    largest = max(params(width) for width in range(1, 200) if params(width) <= cap)
    assert max(params(WIDTH), *sizes) == largest


def test_the_cap_may_be_on_macs():
    assert max(spread(macs_cap=4000.0)) == max(spread(400))


def test_sizes_spread_at_least_by_half_and_without_the_model_itself():
    sizes = spread()
    assert max(sizes) == params(round(WIDEST * WIDTH))
    assert params(WIDTH) not in sizes
    assert len(sizes) <= COUNT + 1
    assert all(b / a > 1.4 for a, b in pairwise(sizes))
    assert min(sizes) < params(WIDTH)


def test_networks_that_cost_too_much_to_train_are_left_out():
    sizes = spread(most_cost=3.0)
    assert max(sizes) <= 3.0 * params(WIDTH)
    assert max(sizes) > 2.5 * params(WIDTH)


def test_a_model_that_cannot_be_scaled_has_no_other_width():
    def refused(factor: float) -> Variant:
        raise EsperError("sizes are written out in forward")

    assert spread_widths(refused, variant(1.0, math.inf), 10.0) == []


def test_names_hold_the_widths():
    assert named_widths(["", *map(width_name, (0.354, 1.41, 16.0))]) == (0.354, 1.41, 16.0)


def test_a_resumed_run_has_the_widths_it_was_started_with(tmp_path, monkeypatch):
    """Though a time limit and a slower machine would choose others."""
    from torch import nn

    x = np.random.default_rng(0).standard_normal((120, 5)).astype(np.float32)
    data = x, (x[:, 0] > 0).astype(np.int64)

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)
        )

    budget = esper.Budget(host_runs=6, params=400)
    settings = {"epochs": 4, "device": "cpu", "verbose": False}
    first = esper.grow(model, data, budget=budget, folder=tmp_path, **settings)
    monkeypatch.setattr("esper.growing.widths.WIDEST_UNDER_CAP", 1.5)
    again = esper.grow(model, data, budget=budget, resume=first.folder, **settings)
    assert again.info.variants == first.info.variants
    assert len(first.info.variants) > 3
