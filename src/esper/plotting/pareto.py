"""Frontiers of score against size: what is dominated, what is kept, and the hypervolume.

Shape letters: N networks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from esper.leyline.arrays import Doubles, Ints


def frontier(cost: Sequence[float], worth: Sequence[float]) -> list[int]:
    """Return the indices of the Pareto-optimal points, cheapest first; NaN is left out.

    >>> frontier([1.0, 2.0, 3.0, 4.0], [0.1, 0.5, 0.4, 0.9])
    [0, 1, 3]
    """
    known = (i for i in range(len(cost)) if not math.isnan(worth[i]))
    found: list[int] = []
    for i in sorted(known, key=lambda i: (cost[i], -worth[i])):
        last = found[-1] if found else None
        if (
            last is None
            or worth[i] > worth[last]
            or (cost[i], worth[i]) == (cost[last], worth[last])
        ):
            found.append(i)
    return found


def dominance_ranks(score_N: Doubles, size_N: Doubles) -> Ints:
    """Rank `[N]`: 0 for networks that none dominates, 1 after those are removed, and so on.

    A network dominates another if it is at least as good and at most as large, and better in one
    of both. A score of NaN is dominated by every other.

    >>> dominance_ranks(np.array([0.9, 0.8, 0.95, 0.7]), np.array([10, 10, 20, 30])).tolist()
    [0, 1, 0, 2]
    """
    size_N = np.where(np.isnan(score_N), np.inf, size_N)
    score_N = np.where(np.isnan(score_N), -np.inf, score_N)
    better_NN = score_N[:, None] >= score_N[None, :]
    smaller_NN = size_N[:, None] <= size_N[None, :]
    strictly_NN = (score_N[:, None] > score_N[None, :]) | (size_N[:, None] < size_N[None, :])
    dominates_NN = better_NN & smaller_NN & strictly_NN
    rank_N = np.full(len(score_N), -1, dtype=np.int64)
    rank = 0
    while (rank_N < 0).any():
        left_N = rank_N < 0
        free_N = left_N & ~(dominates_NN & left_N[:, None]).any(axis=0)
        rank_N[free_N] = rank
        rank += 1
    return rank_N


def survivors(score_N: Doubles, size_N: Doubles, keep: int) -> Ints:
    """Indices of the `keep` best networks, best first.

    Fronts are taken whole, in the order of their rank; of the last one those that leave the largest
    gaps in (score, log size).
    """
    rank_N = dominance_ranks(score_N, size_N)
    crowding_N = np.zeros(len(score_N))
    for rank in np.unique(rank_N):
        front = np.flatnonzero(rank_N == rank)
        crowding_N[front] = _gaps(score_N[front], size_N[front])
    order: Ints = np.lexsort((-crowding_N, rank_N))
    return order[:keep]


def _gaps(score_N: Doubles, size_N: Doubles) -> Doubles:
    """How far the neighbours of each network on its front are apart; infinite at both ends."""
    gaps_N = np.zeros(len(score_N))
    for values in (np.nan_to_num(score_N, nan=-1.0), np.log(np.maximum(size_N, 1.0))):
        order = np.argsort(values, kind="stable")
        spread = values[order[-1]] - values[order[0]]
        gaps_N[order[[0, -1]]] = np.inf
        if len(order) > 2 and spread > 0:
            gaps_N[order[1:-1]] += (values[order[2:]] - values[order[:-2]]) / spread
    return gaps_N


def pareto(score_N: Doubles, size_N: Doubles) -> Ints:
    """Indices of the networks that none dominates, smallest first; of equal ones the first."""
    seen: dict[tuple[float, float], int] = {}
    for index in frontier(size_N.tolist(), score_N.tolist()):
        seen.setdefault((float(size_N[index]), float(score_N[index])), index)
    return np.array(list(seen.values()), dtype=np.int64)


def validation_front(
    merit: Sequence[float], size: Sequence[float], loss: Sequence[float]
) -> list[int]:
    """Indices of the runs of a search that none dominates on validation, smallest first.

    `merit`: the score so that higher is better. Of runs of one size with the same score the one
    with the lowest loss is taken, an unknown one last.

    >>> validation_front([0.5, 0.9, 0.9, 0.8], [10, 20, 20, 30], [1.0, 0.7, 0.6, 0.1])
    [0, 2]
    """
    order = sorted(range(len(merit)), key=lambda i: math.inf if math.isnan(loss[i]) else loss[i])
    merit_N, size_N = (np.array([of[i] for i in order], dtype=float) for of in (merit, size))
    return [order[index] for index in pareto(merit_N, size_N)]


def hypervolume(
    score_N: Doubles, size_N: Doubles, largest: float, smallest: float, worst: float = 0.0
) -> float:
    """Area in (log size, score) that a frontier dominates, as a share of the whole.

    The whole reaches from `smallest` to `largest` and from `worst` to a score of 1.

    >>> hypervolume(np.array([0.5]), np.array([10.0]), largest=1000.0, smallest=10.0)
    0.5
    """
    inside_N = (size_N <= largest) & (score_N > worst)
    front = pareto(score_N[inside_N], size_N[inside_N])
    score_F, size_F = score_N[inside_N][front], size_N[inside_N][front]
    place_F = np.log(np.maximum(size_F, smallest) / smallest) / math.log(largest / smallest)
    width_F = np.diff(np.append(place_F, 1.0))
    return float((width_F * (score_F - worst)).sum() / (1.0 - worst))
