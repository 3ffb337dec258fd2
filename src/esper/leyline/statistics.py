"""Means, interquartile means and paired differences with 95 % confidence intervals.

Percentile bootstrap, stratified as in Agarwal et al. 2021: values `[N, K]` are N runs of each of K
strata (tasks), and runs are drawn again within each stratum. One task is one stratum, `[N]`. The
draws are the same in every call, so equal numbers give equal intervals.

A value that is not finite makes every figure it enters NaN; one run says nothing about spread, so
the ends of its interval are NaN.

Shape letters: N runs, K strata, R resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from esper.leyline.arrays import Doubles, Ints
from esper.leyline.errors import EsperError
from esper.leyline.streams import stream_seed

LEVEL: Final = 0.95
"""Confidence level of every interval."""
RESAMPLES: Final = 20_000
"""R of a bootstrap: its ends are then sure to about a hundredth of the interval's width."""
TRIMMED: Final = 0.25
"""Share of the values an interquartile mean leaves out at each end, rounded down to whole runs."""
_CHUNK: Final = 2_000_000
"""Values drawn at a time, so that many runs do not need much memory."""


class _Interval(NamedTuple):
    """Mean and confidence interval; the bounds are NaN for a single value."""

    mean: Doubles
    low: Doubles
    high: Doubles


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its confidence interval."""

    value: float
    low: float
    high: float


_NOT_KNOWN: Final = Estimate(np.nan, np.nan, np.nan)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Paired difference of two methods over the same runs."""

    student: Estimate
    """Mean difference with Student's t interval."""
    bootstrap: Estimate
    """Mean difference with a bootstrap interval over pairs."""
    above: int
    """Runs where the first is higher."""
    equal: int
    """Runs where they are equal."""
    below: int
    """Runs where the first is lower."""


@np.errstate(invalid="ignore")
def group_means(values_N: Doubles, group_N: Ints) -> Doubles:
    """Mean of each group, groups in order.

    >>> group_means(np.array([1.0, 3.0, 5.0]), np.array([7, 7, 8])).tolist()
    [2.0, 5.0]
    """
    _, place_N = np.unique(group_N, return_inverse=True)
    return np.asarray(np.bincount(place_N, values_N) / np.bincount(place_N))


def t_interval(values_N: Doubles) -> _Interval:
    """Mean and Student's t interval over the first axis."""
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    values = np.asarray(values_N, dtype=np.float64)
    count = len(values)
    mean = values.mean(axis=0)
    if count < 2:
        unknown = np.full_like(mean, np.nan)
        return _Interval(mean, unknown, unknown)
    reach = stdtrit(count - 1, 0.5 + LEVEL / 2) * values.std(axis=0, ddof=1) / np.sqrt(count)
    return _Interval(mean, mean - reach, mean + reach)


def student_estimate(values_N: Doubles) -> Estimate:
    """`t_interval` of a vector."""
    mean, low, high = t_interval(values_N)
    return Estimate(float(mean), float(low), float(high))


def interquartile_estimate(values_NK: Doubles) -> Estimate:
    """Mean of the middle half of all values, with its stratified bootstrap interval.

    `floor(count / 4)` values are dropped at each end.

    >>> interquartile_estimate(np.array([100.0, 1.0, 2.0, 3.0, -50.0])).value
    2.0
    """
    values = _runs(values_NK)
    return _bootstrap(values, _middle_mean, float(_middle_mean(values.reshape(1, -1))[0]))


def mean_estimate(values_NK: Doubles) -> Estimate:
    """Mean with its stratified bootstrap interval."""
    values = _runs(values_NK)
    return _bootstrap(values, _mean, float(values.mean()))


def paired_difference(ours_N: Doubles, theirs_N: Doubles) -> PairedDifference:
    """Difference `ours - theirs`, run by run."""
    if np.shape(ours_N) != np.shape(theirs_N):
        raise EsperError(
            f"paired difference of {len(ours_N)} and {len(theirs_N)} runs: give the same of both"
        )
    difference = np.asarray(ours_N, dtype=np.float64) - np.asarray(theirs_N, dtype=np.float64)
    return PairedDifference(
        student=student_estimate(difference),
        bootstrap=mean_estimate(difference),
        above=int((difference > 0).sum()),
        equal=int((difference == 0).sum()),
        below=int((difference < 0).sum()),
    )


def unpaired_difference(ours_N: Doubles, theirs_M: Doubles) -> Estimate:
    """Difference of the means of independent runs, with Welch's t interval.

    >>> unpaired_difference(np.array([2.0, 4.0]), np.array([1.0, 1.0])).value
    2.0
    """
    from scipy.special import stdtrit

    ours, theirs = (np.asarray(values, dtype=np.float64) for values in (ours_N, theirs_M))
    value = float(ours.mean() - theirs.mean())
    if min(len(ours), len(theirs)) < 2:
        return Estimate(value, np.nan, np.nan)
    spread = np.array([ours.var(ddof=1) / len(ours), theirs.var(ddof=1) / len(theirs)])
    if not spread.sum() > 0.0:
        return Estimate(value, value, value) if np.isfinite(value) else _NOT_KNOWN
    freedom = spread.sum() ** 2 / (spread**2 / (np.array([len(ours), len(theirs)]) - 1)).sum()
    reach = float(stdtrit(freedom, 0.5 + LEVEL / 2) * np.sqrt(spread.sum()))
    return Estimate(value, value - reach, value + reach)


def independent_difference(ours: Estimate, theirs: Estimate) -> Estimate:
    """Difference of independent estimates; their intervals add in quadrature.

    >>> independent_difference(Estimate(3.0, 0.0, 6.0), Estimate(1.0, -3.0, 5.0))
    Estimate(value=2.0, low=-3.0, high=7.0)
    """
    value = ours.value - theirs.value
    reach = float(np.hypot(ours.high - ours.low, theirs.high - theirs.low)) / 2
    return Estimate(value, value - reach, value + reach)


def improvement_estimate(ours_NK: Doubles, theirs_NK: Doubles) -> Estimate:
    """Probability that a run of ours is above a run of theirs, ties half; mean over strata.

    The Mann-Whitney statistic divided by the number of pairs; the pairing of runs is not used. For
    the interval the samples are resampled independently.

    >>> improvement_estimate(np.array([1.0, 2.0]), np.array([0.0, 2.0])).value
    0.625
    """
    ours, theirs = _runs(ours_NK), _runs(theirs_NK)
    beats_KNM = _beats(ours, theirs)
    value = float(beats_KNM.mean(axis=(1, 2)).mean())
    if min(len(ours), len(theirs)) < 2 or not np.isfinite(value):
        return Estimate(value, np.nan, np.nan)
    generator = _generator()
    found = [
        np.mean([_drawn_share(generator, beats_NM, rows) for beats_NM in beats_KNM], axis=0)
        for rows in _chunks(len(ours) + len(theirs))
    ]
    return _percentiles(value, np.concatenate(found))


# ---- helpers -----------------------------------------------------------------------------------


def _runs(values: Doubles) -> Doubles:
    """Reshape the values to `[N, K]`."""
    found = np.asarray(values, dtype=np.float64)
    return found[:, None] if found.ndim == 1 else found


def _mean(values_RX: Doubles) -> Doubles:
    return np.asarray(values_RX.mean(axis=1))


def _middle_mean(values_RX: Doubles) -> Doubles:
    """Interquartile mean of each row; NaN if the row holds a non-finite value."""
    count = values_RX.shape[1]
    cut = int(TRIMMED * count)
    ordered_RX = np.partition(values_RX, (cut, count - cut - 1), axis=1)
    middle_R = ordered_RX[:, cut : count - cut].mean(axis=1)
    return np.where(np.isfinite(values_RX).all(axis=1), middle_R, np.nan)


def _bootstrap(
    values_NK: Doubles, statistic: Callable[[Doubles], Doubles], value: float
) -> Estimate:
    """Bootstrap interval of a row statistic, resampling runs within each stratum."""
    runs, strata = values_NK.shape
    if runs < 2 or not np.isfinite(values_NK).all():
        return Estimate(value, np.nan, np.nan)
    generator = _generator()
    stratum_K = np.arange(strata)
    found = []
    for rows in _chunks(values_NK.size):
        drawn_RNK = generator.integers(runs, size=(rows, runs, strata))
        found.append(statistic(values_NK[drawn_RNK, stratum_K].reshape(rows, -1)))
    return _percentiles(value, np.concatenate(found))


def _chunks(values: int) -> Iterator[int]:
    """Yield how many resamples of `values` values to draw at a time, `RESAMPLES` in total."""
    at_once = max(1, _CHUNK // values)
    for begin in range(0, RESAMPLES, at_once):
        yield min(at_once, RESAMPLES - begin)


def _beats(ours_NK: Doubles, theirs_MK: Doubles) -> Doubles:
    """`[K, N, M]`: 1 where ours is above theirs, 0.5 where equal."""
    ours_KN1, theirs_K1M = ours_NK.T[:, :, None], theirs_MK.T[:, None, :]
    beats_KNM = (ours_KN1 > theirs_K1M) + 0.5 * (ours_KN1 == theirs_K1M)
    known = np.isfinite(ours_NK).all() and np.isfinite(theirs_MK).all()
    return beats_KNM if known else np.full_like(beats_KNM, np.nan)


def _drawn_share(generator: np.random.Generator, beats_NM: Doubles, rows: int) -> Doubles:
    """Share of pairs won `[R]` with both samples resampled.

    A resample is a vector of multiplicities, so each share is a bilinear form of the pair table.
    """
    ours, theirs = beats_NM.shape
    count_RN = generator.multinomial(ours, np.full(ours, 1 / ours), size=rows)
    count_RM = generator.multinomial(theirs, np.full(theirs, 1 / theirs), size=rows)
    return np.asarray(((count_RN @ beats_NM) * count_RM).sum(axis=1) / beats_NM.size)


def _percentiles(value: float, found_R: Doubles) -> Estimate:
    low, high = np.quantile(found_R, (0.5 - LEVEL / 2, 0.5 + LEVEL / 2))
    return Estimate(value, float(low), float(high))


def _generator() -> np.random.Generator:
    return np.random.default_rng(stream_seed(0, "bootstrap"))
