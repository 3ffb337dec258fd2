"""Planners: which topology to plant, from what is observed before training.

A planner ranks all options of a case; the best available one is taken. An option is a topology, or
a topology and the step after which training stops.

Shape letters: N cases, C contexts, J options, P bins of price.
"""

from __future__ import annotations

import math
from typing import Final, Protocol

import numpy as np

from esper.leyline.arrays import Doubles
from esper.leyline.context import Range
from esper_lab.audit.cases import Finals, Observed, Options, expected_compute, option_rent
from esper_lab.audit.records import AuditInfo
from esper_lab.audit.regression import TopologyRegression, context_features

PRICE_BINS: Final = 12


class Planner(Protocol):
    """Ranks options."""

    def rank(self, observed: Observed) -> Doubles:
        """`[N, J]`: the higher, the better; NaN for options it knows nothing about."""
        ...


class BarePlanner:
    """Plants nothing; the later training stops, the better."""

    def __init__(self, options: Options) -> None:
        self.rank_J = np.where(options.topology_J == 0, 1.0 + options.steps_J, 0.0)

    def rank(self, observed: Observed) -> Doubles:
        """The host first."""
        return np.broadcast_to(self.rank_J, (len(observed.price_N), len(self.rank_J)))


class OnePlanner:
    """One ranking for everything: the mean score in the training contexts."""

    def __init__(self, finals: Finals, mean_price: float) -> None:
        """`finals`: of the training contexts."""
        self.rank_J: Doubles = _mean_scores(finals, np.array([mean_price]))[0]

    def rank(self, observed: Observed) -> Doubles:
        """The same ranking in every case."""
        return np.broadcast_to(self.rank_J, (len(observed.price_N), len(self.rank_J)))


class TablePlanner:
    """A table price -> ranking, by the mean score in the training contexts."""

    def __init__(self, finals: Finals, prices: Range, bins: int = PRICE_BINS) -> None:
        """`finals`: of the training contexts; bins of price are equal on a log scale."""
        self.edge_P = prices.log_uniform(np.arange(1, bins) / bins)
        self.price_P = prices.log_uniform((np.arange(bins) + 0.5) / bins)
        """Centre of each bin, at which its ranking is made."""
        self.rank_PJ: Doubles = _mean_scores(finals, self.price_P)

    def rank(self, observed: Observed) -> Doubles:
        """The ranking of the price's bin."""
        return np.asarray(self.rank_PJ[np.searchsorted(self.edge_P, observed.price_N)])


class RegressionPlanner:
    """Predicted accuracy, from everything observed, minus the rent known before training."""

    def __init__(
        self,
        info: AuditInfo,
        observed_C: Observed,
        finals: Finals,
        options: Options | None = None,
        seed: int = 0,
    ) -> None:
        """`observed_C` and `finals`: of the training contexts; prices and caps are not used."""
        self.info = info
        self.options = options or Options.trained_to_the_end(info)
        self.model = TopologyRegression(info, self.options, seed)
        self.model.fit(context_features(observed_C), finals.accuracy_CJ)

    def rank(self, observed: Observed) -> Doubles:
        """Predicted score, up to a constant of the case."""
        return self.accuracy(observed) - known_rent(self.info, observed, self.options)

    def accuracy(self, observed: Observed) -> Doubles:
        """`[N, J]`: predicted accuracy, relative to the mean over options."""
        return self.model.predict(context_features(observed))


def known_rent(info: AuditInfo, observed: Observed, options: Options | None = None) -> Doubles:
    """`[N, J]`: rent at the case's price; no options: of a whole run of every topology."""
    options = options or Options.trained_to_the_end(info)
    whole_NJ = expected_compute(info, observed.budget_N)[:, options.topology_J]
    rent_NJ = option_rent(info, options, whole_NJ * (options.steps_J / info.steps))
    return np.asarray(observed.price_N[:, None] * rent_NJ)


def _mean_scores(finals: Finals, price_P: Doubles) -> Doubles:
    """`[P, J]`: mean over contexts of the scores at each price; NaN without any record."""
    known_CJ = np.isfinite(finals.accuracy_CJ)
    count_J = np.maximum(known_CJ.sum(axis=0), 1)
    accuracy_J = np.where(known_CJ, finals.accuracy_CJ, 0.0).sum(axis=0) / count_J
    rent_J = np.where(known_CJ, finals.rent_CJ, 0.0).sum(axis=0) / count_J
    mean_PJ = accuracy_J - price_P[:, None] * rent_J
    return np.where(known_CJ.any(axis=0), mean_PJ, np.nan)


def mean_price(prices: Range) -> float:
    """Mean of a log-uniform price.

    >>> round(mean_price(Range(1.0, 1.0)), 6)
    1.0
    """
    if prices.low == prices.high:
        return prices.low
    return (prices.high - prices.low) / math.log(prices.high / prices.low)
