"""How a bracket of successive halving spends its compute.

It trains many candidates for a short time, keeps the better ones that make up half of their cost,
trains these twice as long, and so on; the last ones are trained in full. With R halvings it costs
(1 + R / 2) / 2**R of what training all candidates in full would.

Costs are relative to the model as given.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from esper.leyline.errors import EsperError

HALVINGS: Final = 2
"""Most halvings of a bracket: the first ranking is made at a quarter of the training."""
LEAST_BATCHES: Final = 12
"""Candidates are not ranked after fewer batches than this."""


def stage_ends(length: int, candidates: int) -> tuple[int, ...]:
    """Batches at the ends of the stages of a bracket.

    `length`: batches of a full training run.

    >>> stage_ends(800, 32), stage_ends(800, 2), stage_ends(20, 32)
    ((200, 400, 800), (400, 800), (20,))
    """
    if length < 1 or candidates < 1:
        raise EsperError(f"bracket of {candidates} candidates, {length} batches: both 1 or more")
    halvings = min(HALVINGS, candidates.bit_length() - 1)
    while halvings and length >> halvings < LEAST_BATCHES:
        halvings -= 1
    return tuple(-(-length // 2 ** (halvings - stage)) for stage in range(halvings + 1))


def remaining_share(ends: Sequence[int], stage: int) -> float:
    """Training that is left after a stage for what it costs to train its survivors in full.

    >>> remaining_share((100, 200, 400, 800), 1)
    0.5
    """
    later = [end - before for before, end in pairwise(ends[stage:])]
    return float(sum(step / 2**halvings for halvings, step in enumerate(later)) / ends[-1])


def bracket_share(ends: Sequence[int]) -> float:
    """Cost of a bracket, relative to training all its candidates in full.

    >>> bracket_share((100, 200, 400, 800)), bracket_share((800,))
    (0.3125, 1.0)
    """
    if len(ends) == 1:
        return 1.0
    return ends[0] / ends[-1] + remaining_share(ends, 0) / 2


def affordable(costs: Sequence[float], length: int, runs: float) -> list[int]:
    """Which candidates a bracket can have for `runs` full training runs, the first ones first.

    Those that do not fit are passed over. Fewer candidates may have fewer stages, which cost more.

    >>> affordable([1.0, 9.0, 1.0, 1.0], 800, 3.0)
    [0, 2, 3]
    """
    for count in range(len(costs), 0, -1):
        most = runs / bracket_share(stage_ends(length, count))
        kept = within_cost(range(len(costs)), costs, most)[:count]
        spent = sum(costs[index] for index in kept)
        if kept and spent * bracket_share(stage_ends(length, len(kept))) <= runs * (1 + 1e-9):
            return kept
    return []


def within_cost(order: Sequence[int], costs: Sequence[float], most: float) -> list[int]:
    """Those of `order` that fit one after the other into a total cost; others are passed over.

    >>> within_cost([2, 0, 1], [1.0, 1.0, 5.0], 2.5)
    [0, 1]
    """
    kept, spent = [], 0.0
    for index in order:
        if spent + costs[index] <= most * (1 + 1e-9):
            kept.append(index)
            spent += costs[index]
    return kept
