"""Topologies: sizes, limits, and what a bracket tries."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from esper.growing.plan import (
    HALVINGS,
    LEAST_BATCHES,
    affordable,
    bracket_share,
    remaining_share,
    stage_ends,
)
from esper.growing.proposals import Proposer
from esper.growing.records import Candidate
from esper.growing.variants import Variant

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
        number,
        0,
        topology,
        rate,
        origin,
        None,
        0,
        params,
        10 * params,
        ((9, score),),
        finished=True,
    )


def propose(space: TopologySpace, rates, known, bracket, count, seed, hosts: int = 1):
    variants = [Variant(f"x{host}", None, space, 1.0 + host) for host in range(hosts)]
    return Proposer(variants, rates, known, bracket, seed).propose(count)


def test_the_first_bracket_has_the_model_at_every_rate_and_other_widths_at_two():
    found = propose(space(), RATES, [], 0, 16, seed=3, hosts=3)
    assert [(p.host, p.rate) for p in found[:3]] == [(0, rate) for rate in RATES]
    assert {(p.host, p.rate) for p in found[3:]} == {(1, 0.3), (1, 1.0), (2, 0.3), (2, 1.0)}
    assert {p.origin for p in found} == {"host"}
    assert {p.topology for p in found} == {space().bare}


def test_at_random_the_first_bracket_has_the_controls_and_random_topologies():
    variants = [Variant("", None, space(), 1.0)]
    found = Proposer(variants, RATES, [], 0, 3).propose(12, at_random=True)
    assert [p.origin for p in found[:3]] == ["host"] * 3
    assert any(p.origin == "planted" for p in found[3:])
    assert len({(p.topology, p.rate) for p in found}) == len(found) == 12


def test_seeds_are_first_tried_at_the_rate_of_the_frontier_near_their_size():
    known = [candidate(0, space().bare, 0.5, "host", rate=1.0)]
    found = propose(space(), RATES, known, 1, 12, seed=3)
    planted = [p for p in found if p.origin == "planted" and p.parent is None]
    assert len(planted) >= 4
    assert {p.rate for p in planted} == {1.0}


def test_another_width_keeps_the_seeds_that_fit_it():
    seeds = ("small", "", "small")
    known = [candidate(0, seeds, 0.9, rate=1.0)]
    found = propose(space(), RATES, known, 1, 24, seed=3, hosts=2)
    assert any(p.host == 1 and p.topology == seeds and p.parent == 0 for p in found)
    assert not space(params_cap=120).holds(seeds)
    assert not space().holds(("small", "small"))
    assert not space().holds(("big", "", ""))


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
    assert not tried & {(p.host, p.topology, p.rate) for p in found}


def test_neighbours_change_the_width_too():
    known = [candidate(0, space().bare, 0.5, "host")]
    later = propose(space(), RATES, known, 1, 24, seed=3, hosts=4)
    assert any(p.host != 0 and p.parent == 0 for p in later)
    assert {p.host for p in later if p.origin == "planted"} == {0, 1, 2, 3}


def test_when_all_is_tried_nothing_is_proposed():
    small = space(params_cap=100)  # the bare host alone
    known = [candidate(i, small.bare, 0.5, "host", rate) for i, rate in enumerate(RATES)]
    assert propose(small, RATES, known, 1, 5, seed=0) == []


@pytest.mark.parametrize("length", [1, 20, 200, 1485])
@pytest.mark.parametrize("candidates", [1, 2, 7, 32])
def test_stages_double_to_the_full_length(length, candidates):
    ends = stage_ends(length, candidates)
    assert ends[-1] == length
    assert all(abs(2 * a - b) <= 1 for a, b in pairwise(ends))
    assert len(ends) == 1 or ends[0] >= LEAST_BATCHES
    assert 2 ** (len(ends) - 1) <= min(candidates, 2**HALVINGS)


def test_the_cost_of_a_bracket_is_that_of_its_stages():
    """Candidates of equal cost, halved exactly."""
    ends = stage_ends(1600, 16)
    trained = [0, *ends]
    batches = sum((16 >> k) * (b - a) for k, (a, b) in enumerate(pairwise(trained)))
    assert bracket_share(ends) == batches / (16 * 1600)
    for stage in range(len(ends) - 1):
        later = [(1 / 2**k) * (b - a) for k, (a, b) in enumerate(pairwise(ends[stage:]))]
        assert remaining_share(ends, stage) == pytest.approx(sum(later) / 1600)


@pytest.mark.parametrize("runs", [0.5, 1.0, 3.0, 20.0])
def test_a_bracket_costs_at_most_its_budget(runs):
    costs = np.random.default_rng(0).uniform(1.0, 6.0, size=32)
    kept = affordable(costs.tolist(), 400, runs)
    assert kept or runs < costs.min()
    assert kept == sorted(set(kept))
    if kept:
        assert costs[kept].sum() * bracket_share(stage_ends(400, len(kept))) <= runs * (1 + 1e-9)


def test_what_does_not_fit_is_passed_over_for_what_does():
    assert affordable([1.0, 50.0, 1.0, 1.0, 1.0], 400, 4.0) == [0, 2, 3, 4]
