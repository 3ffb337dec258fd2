"""Topologies of a host: sizes and limits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from esper.kasmina.costs.seed_costs import TrainingCosts
from esper.kasmina.lifecycle.caps import SeedCosts
from esper_lab.audit.topology_space import TopologySpace


def space(params_cap: float = math.inf, macs_cap: float = math.inf) -> TopologySpace:
    """Three slots, two blueprints; `big` does not fit the first slot."""
    params = np.array([[10, 0], [10, 100], [20, 200]])
    fits = params > 0
    costs = SeedCosts(100, 1000, params, params * 10, np.zeros(3, dtype=np.int64))
    training = TrainingCosts(3000, np.zeros(3, np.int64), params * 30, params, params)
    return TopologySpace(("small", "big"), fits, costs, training, params_cap, macs_cap)


def test_sizes_add_up():
    found = space().size(("small", "", "big"))
    assert (found.params, found.macs) == (310, 3100)
    assert found.cost == pytest.approx(1 + 210 * 30 / 3000)
    assert space().size(space().host).cost == 1.0


def test_nothing_exceeds_the_limits():
    limited = space(params_cap=235, macs_cap=2310)
    generator = np.random.default_rng(0)
    drawn = {limited.drawn(share, generator) for share in np.linspace(0, 1, 200)}
    known = {limited.largest(), *limited.uniform(), *drawn}
    known |= {near for topology in drawn for near in limited.neighbours(topology)}
    assert len(known) > 5
    for topology in known:
        assert limited.size(topology).params <= 235
        assert limited.size(topology).macs <= 2310


def test_drawn_sizes_spread_over_the_whole_range():
    generator = np.random.default_rng(1)
    sizes = [space().size(space().drawn(share, generator)).params for share in (0.0, 0.5, 1.0)]
    assert sizes[0] <= 115
    assert sizes[-1] > 250


def test_neighbours_differ_in_one_slot():
    near = space().neighbours(("small", "", "big"))
    assert len(near) == len(set(near)) == 1 + 2 + 2
    for other in near:
        assert sum(a != b for a, b in zip(other, ("small", "", "big"), strict=True)) == 1


def test_what_does_not_fit_is_not_held():
    seeds = ("small", "", "small")
    assert space().holds(seeds)
    assert not space(params_cap=120).holds(seeds)
    assert not space().holds(("small", "small"))
    assert not space().holds(("big", "", ""))
