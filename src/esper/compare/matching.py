"""N*: the compute of successive halving that matches one run of a controller.

From the results of asha:1, asha:2, asha:4, ... in the same comparison: mean score over mean compute
of a host, search included, interpolated linearly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from esper.compare.comparison import ComparedPolicy, Comparison

METRICS: Final = ("score", "score_test")
CLOSED_LOOPS: Final = ("controller", "heuristic", "own:")
"""Beginnings of the canonical texts of policies that decide while they watch."""


@dataclass(frozen=True, slots=True)
class Match:
    """Compute of a search that scores as much as one run of a policy."""

    label: str
    """The policy."""
    metric: str
    """Which mean is matched: `score` or `score_test`."""
    runs: float
    """N*: compute per host in runs of the policy."""
    bound: Literal["", "<", ">"]
    """`<`: the cheapest search already matches it; `>`: the most expensive one does not."""

    def __str__(self) -> str:
        return f"{self.bound} {self.runs:.2f}".strip()


def matching_compute(found: Comparison) -> tuple[Match, ...]:
    """N* of every policy that watches; empty with fewer than two searches."""
    searches = [policy for policy in found.policies if policy.policy.startswith("asha:")]
    if len({policy.policy for policy in searches}) < 2:
        return ()
    watching = [
        policy
        for policy in found.policies
        if policy.policy.startswith(CLOSED_LOOPS) and "blind" not in policy.policy
    ]
    return tuple(_match(policy, searches, metric) for policy in watching for metric in METRICS)


def _match(policy: ComparedPolicy, searches: Sequence[ComparedPolicy], metric: str) -> Match:
    one_run = policy.standing("compute").mean.value
    points = sorted(
        (search.standing("compute").mean.value / one_run, search.standing(metric).mean.value)
        for search in searches
    )
    runs, bound = first_reaching(points, policy.standing(metric).mean.value)
    return Match(policy.label, metric, runs, bound)


def first_reaching(
    points: Sequence[tuple[float, float]], wanted: float
) -> tuple[float, Literal["", "<", ">"]]:
    """Smallest x at which the line through (x, y) `points` reaches `wanted`.

    >>> first_reaching([(1.0, 0.5), (2.0, 0.7)], 0.6)
    (1.5, '')
    """
    if points[0][1] >= wanted:
        return points[0][0], "<"
    for (x0, y0), (x1, y1) in pairwise(points):
        if y1 >= wanted:
            return x0 + (x1 - x0) * (wanted - y0) / (y1 - y0), ""
    return points[-1][0], ">"
