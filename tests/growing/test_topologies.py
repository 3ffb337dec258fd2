"""Topologies: sizes, limits, and what a bracket tries."""

from __future__ import annotations

import math

import numpy as np
import pytest

from esper.growing.plan import HALVINGS, LEAST_BATCHES, make_bracket
from esper.growing.proposals import propose
from esper.growing.records import Candidate
from esper.growing.topologies import TopologySpace
from esper.kasmina.caps import SeedCosts
from esper.kasmina.seed_costs import TrainingCosts

RATES = (0.1, 0.3, 1.0)


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
    assert space().size(space().bare).cost == 1.0


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


def candidate(number: int, topology, score: float, origin="planted", rate=0.3) -> Candidate:
    params = space().size(topology).params
    return Candidate(
        number, topology, rate, origin, None, 0, params, 10 * params, ((9, score),), finished=True
    )


def test_the_first_bracket_has_the_model_at_every_rate_and_no_two_alike():
    found = propose(space(), RATES, [], 0, 16, seed=3)
    assert [(p.topology, p.rate) for p in found[:3]] == [(space().bare, rate) for rate in RATES]
    assert [p.origin for p in found[:4]] == ["host"] * 3 + ["planted"]
    assert len({(p.topology, p.rate) for p in found}) == len(found) == 16


def test_a_later_bracket_plants_what_pruning_found_and_tries_nothing_twice():
    grown = ("small", "big", "")
    known = [
        candidate(0, space().bare, 0.5, "host"),
        candidate(1, grown, 0.9, "pruned", rate=0.1),
        candidate(2, ("small", "big", "big"), 0.95),
    ]
    found = propose(space(), RATES, known, 1, 12, seed=3)
    refit = [p for p in found if p.origin == "refit"]
    # Same topology and rate as the pruned one, which was not trained from the start.
    assert [(p.topology, p.rate, p.parent) for p in refit] == [(grown, 0.1, 1)]
    tried = {c.key for c in known if c.origin != "pruned"}
    assert not tried & {(p.topology, p.rate) for p in found}


def test_when_all_is_tried_nothing_is_proposed():
    small = space(params_cap=100)  # the bare host alone
    known = [candidate(i, small.bare, 0.5, "host", rate) for i, rate in enumerate(RATES)]
    assert propose(small, RATES, known, 1, 5, seed=0) == []


@pytest.mark.parametrize("length", [1, 20, 200, 1485])
@pytest.mark.parametrize("runs", [0.5, 1.0, 3.0, 20.0])
def test_a_bracket_costs_at_most_its_budget_and_halves_to_the_full_length(length, runs):
    bracket = make_bracket(length, 32, runs)
    if bracket is None:
        assert runs < 1
        return
    assert bracket.runs <= runs
    assert bracket.ends[-1] == length
    assert bracket.members[0] <= 32
    assert all(a == 2 * b for a, b in zip(bracket.members, bracket.members[1:], strict=False))
    assert len(bracket.ends) == 1 or bracket.ends[0] >= LEAST_BATCHES
    assert len(bracket.ends) <= HALVINGS + 1
