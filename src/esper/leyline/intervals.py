"""How sure a mean is: the 95 % interval of Student's t."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from esper.leyline.arrays import Doubles

CONFIDENCE = 0.95
"""The share of such intervals that hold the true mean."""


class Interval(NamedTuple):
    """A mean and the interval around it; NaN ends where one value says nothing about spread."""

    mean: Doubles
    low: Doubles
    high: Doubles


def t_interval(values_N: Doubles) -> Interval:
    """Mean and interval over the first axis; further axes are kept."""
    from scipy.stats import t

    values = np.asarray(values_N, dtype=np.float64)
    count = len(values)
    mean = values.mean(axis=0)
    if count < 2:
        unknown = np.full_like(mean, np.nan)
        return Interval(mean, unknown, unknown)
    reach = t.ppf(0.5 + CONFIDENCE / 2, count - 1) * values.std(axis=0, ddof=1) / np.sqrt(count)
    return Interval(mean, mean - reach, mean + reach)
