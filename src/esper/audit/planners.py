"""Planners: which topology to plant, from what is observed before training.

A planner ranks all topologies of a case; the best available one is planted.

Shape letters: N cases, C contexts, K topologies, P bins of price.
"""

from __future__ import annotations

import math
from typing import Final, Protocol

import numpy as np

from esper.audit.cases import Finals, Observed, expected_compute, rent
from esper.audit.records import AuditInfo
from esper.audit.regression import TopologyRegression, context_features
from esper.leyline.arrays import Doubles
from esper.leyline.context import Range

PRICE_BINS: Final = 12


class Planner(Protocol):
    """Ranks topologies."""

    def rank(self, observed: Observed) -> Doubles:
        """`[N, K]`: the higher, the better; NaN for topologies it knows nothing about."""
        ...


class BarePlanner:
    """Plants nothing."""

    def __init__(self, topologies: int) -> None:
        self.topologies = topologies

    def rank(self, observed: Observed) -> Doubles:
        """The bare host first."""
        rank_NK = np.zeros((len(observed.price_N), self.topologies))
        rank_NK[:, 0] = 1.0
        return rank_NK


class OnePlanner:
    """One ranking for everything: the mean score in the training contexts."""

    def __init__(self, finals: Finals, mean_price: float) -> None:
        """`finals`: of the training contexts."""
        self.rank_K: Doubles = _mean_scores(finals, np.array([mean_price]))[0]

    def rank(self, observed: Observed) -> Doubles:
        """The same ranking in every case."""
        return np.broadcast_to(self.rank_K, (len(observed.price_N), len(self.rank_K)))


class TablePlanner:
    """A table price -> ranking, by the mean score in the training contexts."""

    def __init__(self, finals: Finals, prices: Range, bins: int = PRICE_BINS) -> None:
        """`finals`: of the training contexts; bins of price are equal on a log scale."""
        self.edge_P = prices.log_uniform(np.arange(1, bins) / bins)
        self.price_P = prices.log_uniform((np.arange(bins) + 0.5) / bins)
        """Centre of each bin, at which its ranking is made."""
        self.rank_PK: Doubles = _mean_scores(finals, self.price_P)

    def rank(self, observed: Observed) -> Doubles:
        """The ranking of the price's bin."""
        return np.asarray(self.rank_PK[np.searchsorted(self.edge_P, observed.price_N)])


class RegressionPlanner:
    """Predicted accuracy, from everything observed, minus the rent known before training."""

    def __init__(
        self, info: AuditInfo, observed_C: Observed, finals: Finals, seed: int = 0
    ) -> None:
        """`observed_C` and `finals`: of the training contexts; prices and caps are not used."""
        self.info = info
        self.model = TopologyRegression(info, seed)
        self.model.fit(context_features(observed_C), finals.accuracy_CK)

    def rank(self, observed: Observed) -> Doubles:
        """Predicted score, up to a constant of the case."""
        return self.accuracy(observed) - known_rent(self.info, observed)

    def accuracy(self, observed: Observed) -> Doubles:
        """`[N, K]`: predicted accuracy, relative to the mean over topologies."""
        return self.model.predict(context_features(observed))


def known_rent(info: AuditInfo, observed: Observed) -> Doubles:
    """`[N, K]`: rent of a whole run at the case's price."""
    rent_NK = rent(info, expected_compute(info, observed.budget_N))
    return np.asarray(observed.price_N[:, None] * rent_NK)


def _mean_scores(finals: Finals, price_P: Doubles) -> Doubles:
    """`[P, K]`: mean over contexts of the scores at each price; NaN without any record."""
    known_CK = np.isfinite(finals.accuracy_CK)
    count_K = np.maximum(known_CK.sum(axis=0), 1)
    accuracy_K = np.where(known_CK, finals.accuracy_CK, 0.0).sum(axis=0) / count_K
    rent_K = np.where(known_CK, finals.rent_CK, 0.0).sum(axis=0) / count_K
    mean_PK = accuracy_K - price_P[:, None] * rent_K
    return np.where(known_CK.any(axis=0), mean_PK, np.nan)


def mean_price(prices: Range) -> float:
    """Mean of a log-uniform price.

    >>> round(mean_price(Range(1.0, 1.0)), 6)
    1.0
    """
    if prices.low == prices.high:
        return prices.low
    return (prices.high - prices.low) / math.log(prices.high / prices.low)
