"""Successive halving (ASHA) by look-up in the records: what would a search find, at which compute?

A search tries N random topologies on one host. At each quarter of the episode the worse half of
those still running stops, ranked by the score on `val_control`; at the end the best of the rest is
taken and scored on `val_score`. The compute of all N is counted, each up to where it stopped.

A search picks a *trained network* of its host, not only a topology, so with many topologies it may
exceed the best topology of the context.

Shape letters: N searches, M topologies of a search, K topologies, T observations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from esper.leyline.arrays import ArrayStruct, Bools, Doubles, Ints
from esper.leyline.errors import EsperError
from esper_lab.audit.cases import Observed, recorded, rent, uniform, within_caps
from esper_lab.audit.records import Audit

RUNGS: Final = (0.25, 0.5, 0.75)
"""Shares of the episode after which the worse half stops."""
SIZES: Final = (1, 2, 4, 8, 16)
"""Numbers of topologies to search; all of them come in addition."""


@dataclass(frozen=True, slots=True, eq=False)
class Searches(ArrayStruct):
    """Results of searches."""

    topology_N: Ints
    """The winner."""
    score_N: Doubles
    """Of the winner, on `val_score`; the rent is that of its own run, not of the search."""
    test_N: Doubles
    compute_N: Doubles
    """Of the whole search, in training runs of the host."""


@dataclass(frozen=True, slots=True)
class SearchPoint:
    """Mean result of searches of one size."""

    topologies: int
    score: float
    compute: float
    """In training runs of the host."""
    runs: float
    """Compute relative to a single whole run in the same contexts."""


def rung_rows(steps: int) -> tuple[int, ...]:
    """Observations at which the worse half stops.

    >>> rung_rows(10)
    (3, 5, 8)
    """
    rows = {math.ceil(steps * share) for share in RUNGS}
    return tuple(sorted(row for row in rows if 0 < row < steps))


def asha(
    audit: Audit,
    context_N: Ints,
    host_N: Ints,
    draw_N: Ints,
    observed: Observed,
    topologies: int,
    seed: int = 0,
) -> Searches:
    """Search on host n of context n; the topologies of a smaller search are among a larger one's.

    Where fewer topologies are available, all of them are tried.
    """
    if topologies < 1:
        raise EsperError(f"asha:{topologies}: search 1 topology or more")
    available_NK = recorded(audit)[context_N] & within_caps(audit.info, observed)
    index_K = np.arange(available_NK.shape[1])[None]
    path = ("asha", context_N[:, None], "host", host_N[:, None], "draw", draw_N[:, None])
    key_NK = np.where(available_NK, uniform(seed, *path, "topology", index_K), np.inf)
    tried_NM = np.argsort(key_NK, axis=1, kind="stable")[:, :topologies]
    running_NM = np.take_along_axis(available_NK, tried_NM, axis=1)
    look_up = _LookUp(audit, context_N, host_N, tried_NM, observed.price_N)
    steps = audit.info.steps
    compute_NM = np.where(running_NM, look_up.compute(steps), 0.0)
    for row in rung_rows(steps):
        kept_NM = better_half(look_up.control_score(row), running_NM)
        stopped_NM = running_NM & ~kept_NM
        compute_NM = np.where(stopped_NM, look_up.compute(row), compute_NM)
        running_NM = kept_NM
    final_NM = np.where(running_NM, look_up.control_score(steps), -np.inf)
    at = np.arange(len(tried_NM)), final_NM.argmax(axis=1)
    winner_N = tried_NM[at]
    return Searches(
        topology_N=winner_N,
        score_N=look_up.score(steps)[at],
        test_N=audit.records.test_CHK[context_N, host_N, winner_N].astype(np.float64),
        compute_N=compute_NM.sum(axis=1),
    )


def better_half(value_NM: Doubles, running_NM: Bools) -> Bools:
    """The better half of those running, rounded up; ties go to the first."""
    value_NM = np.where(running_NM & ~np.isnan(value_NM), value_NM, -np.inf)
    # Those not running come last, also after running ones whose value is not finite.
    order_NM = np.lexsort((-value_NM, ~running_NM), axis=1)
    place_NM = np.empty_like(order_NM)
    np.put_along_axis(place_NM, order_NM, np.arange(order_NM.shape[1])[None], axis=1)
    kept_N = -(-running_NM.sum(axis=1) // 2)
    return np.asarray(running_NM & (place_NM < kept_N[:, None]))


class _LookUp:
    """Records of the topologies that searches try."""

    def __init__(
        self, audit: Audit, context_N: Ints, host_N: Ints, tried_NM: Ints, price_N: Doubles
    ) -> None:
        self.audit, self._tried_NM, self._price_N1 = audit, tried_NM, price_N[:, None]
        self._at = context_N[:, None], host_N[:, None], tried_NM

    def compute(self, row: int) -> Doubles:
        """`[N, M]`: spent until an observation."""
        return np.asarray(self.audit.records.compute_CHKT[(*self._at, row)], dtype=np.float64)

    def score(self, row: int) -> Doubles:
        """`[N, M]`: score on `val_score` at an observation."""
        return np.asarray(self.audit.records.accuracy_CHKT[(*self._at, row)] - self._rent(row))

    def control_score(self, row: int) -> Doubles:
        """`[N, M]`: the same on `val_control`, as a search sees it."""
        return np.asarray(self.audit.records.control_CHKT[(*self._at, row)] - self._rent(row))

    def _rent(self, row: int) -> Doubles:
        info = self.audit.info
        size_K = rent(info, np.ones(len(info.topologies)))
        extra_NM = info.constants.c_f * (self.compute(row) - 1.0)
        return np.asarray(self._price_N1 * (size_K[self._tried_NM] + extra_NM))


# ---- compute of a search that matches a score -------------------------------------------------


def search_points(searches: Sequence[tuple[int, Searches]]) -> tuple[SearchPoint, ...]:
    """Mean results by size; the first size must be 1, whose compute is a single run."""
    if not searches or searches[0][0] != 1:
        raise EsperError("search points: begin with searches of 1 topology, the unit of compute")
    single = float(searches[0][1].compute_N.mean())
    return tuple(
        SearchPoint(
            topologies=size,
            score=float(found.score_N.mean()),
            compute=float(found.compute_N.mean()),
            runs=float(found.compute_N.mean()) / single,
        )
        for size, found in searches
    )


def matching_runs(points: Sequence[SearchPoint], score: float) -> float:
    """N*: compute of a search, in single runs, whose mean score is `score`.

    Linear in the logarithm of compute between points. 1: a random topology already reaches it; inf:
    no search does.
    """
    best = np.maximum.accumulate([point.score for point in points])
    doublings = np.log2([point.runs for point in points])
    if score <= best[0]:
        return 1.0
    if score > best[-1]:
        return math.inf
    after = int(np.searchsorted(best, score))
    share = (score - best[after - 1]) / (best[after] - best[after - 1])
    return float(2.0 ** (doublings[after - 1] + share * (doublings[after] - doublings[after - 1])))
