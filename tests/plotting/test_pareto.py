"""Frontiers: what is dominated, what survives, how much a frontier dominates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.plotting.pareto import dominance_ranks, frontier, hypervolume, pareto, survivors

scores = st.floats(0.0, 1.0, allow_nan=False).map(lambda v: round(v, 2))
points = st.lists(st.tuples(scores, st.integers(1, 50)), min_size=1, max_size=25)


def arrays(values) -> tuple[np.ndarray, np.ndarray]:
    return np.array([v[0] for v in values]), np.array([float(v[1]) for v in values])


def dominates(a, b) -> bool:
    return a[0] >= b[0] and a[1] <= b[1] and a != b


@settings(max_examples=60)
@given(points)
def test_rank_0_is_what_no_other_dominates_and_ranks_follow_dominance(values):
    rank = dominance_ranks(*arrays(values))
    for i, a in enumerate(values):
        assert (rank[i] == 0) == (not any(dominates(b, a) for b in values))
        for j, b in enumerate(values):
            if dominates(a, b):
                assert rank[i] < rank[j]


@settings(max_examples=60)
@given(points, st.integers(1, 10))
def test_survivors_are_of_the_best_ranks(values, keep):
    score, size = arrays(values)
    chosen = survivors(score, size, keep)
    assert len(set(chosen.tolist())) == len(chosen) == min(keep, len(values))
    rank = dominance_ranks(score, size)
    left = set(range(len(values))) - set(chosen.tolist())
    assert all(rank[i] <= rank[j] for i in chosen for j in left)


@settings(max_examples=60)
@given(points)
def test_the_frontier_is_rank_0_without_copies(values):
    rank = dominance_ranks(*arrays(values))
    found = pareto(*arrays(values)).tolist()
    assert {values[i] for i in found} == {v for v, r in zip(values, rank, strict=True) if r == 0}
    assert len(found) == len({values[i] for i in found})
    assert found == sorted(found, key=lambda i: values[i][1])


def test_of_the_last_front_the_ends_and_the_widest_gaps_survive():
    score, size = np.array([0.1, 0.5, 0.51, 0.9]), np.array([1.0, 10.0, 11.0, 1000.0])
    assert set(survivors(score, size, 2)) == {0, 3}
    assert set(survivors(score, size, 4)) == {0, 1, 2, 3}


def test_a_member_without_a_score_is_the_last_to_survive():
    assert survivors(np.array([math.nan, 0.1]), np.array([1.0, 50.0]), 1).tolist() == [1]
    assert pareto(np.array([math.nan, 0.1]), np.array([1.0, 50.0])).tolist() == [1]


def test_of_equal_networks_the_first_is_on_the_frontier():
    found = pareto(np.array([0.5, 0.5, 0.9]), np.array([3.0, 3.0, 4.0]))
    assert found.tolist() == [0, 2]


def test_the_hypervolume_is_the_area_under_the_staircase():
    score, size = np.array([0.4, 0.8, 0.3]), np.array([1.0, 10.0, 50.0])
    wanted = 0.5 * 0.4 + 0.5 * 0.8
    assert hypervolume(score, size, largest=100.0, smallest=1.0) == pytest.approx(wanted)
    worst = 0.2
    wanted = (0.5 * (0.4 - worst) + 0.5 * (0.8 - worst)) / (1 - worst)
    found = hypervolume(score, size, largest=100.0, smallest=1.0, worst=worst)
    assert found == pytest.approx(wanted)


@settings(max_examples=40)
@given(points, st.tuples(scores, st.integers(1, 50)))
def test_another_network_never_lowers_the_hypervolume(values, more):
    def volume(some):
        return hypervolume(*arrays(some), largest=50.0, smallest=0.5)

    assert volume([*values, more]) >= volume(values) - 1e-12


COSTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=9)


@given(COSTS)
def test_the_frontier_is_what_no_other_beats(pairs):
    cost, worth = [float(c) for c, _ in pairs], [float(w) for _, w in pairs]

    def beaten(i: int) -> bool:
        return any(
            cost[j] <= cost[i]
            and worth[j] >= worth[i]
            and (cost[j], worth[j]) != (cost[i], worth[i])
            for j in range(len(pairs))
        )

    found = frontier(cost, worth)
    assert sorted(found) == [i for i in range(len(pairs)) if not beaten(i)]
    assert [cost[i] for i in found] == sorted(cost[i] for i in found)


def test_what_is_unknown_is_not_on_the_frontier():
    assert frontier([1.0, 2.0, 3.0], [math.nan, 0.2, 0.3]) == [1, 2]
