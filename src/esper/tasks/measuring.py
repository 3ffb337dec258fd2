"""Scores of networks over a whole part: their errors, differences, and what a constant gets.

Shape letters: R rows (networks), B batch, N samples, C classes, W resamples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from esper.leyline.arrays import Doubles
from esper.leyline.errors import EsperError
from esper.leyline.streams import stream_seed
from esper.tasks.metric_forms import Kept, LabelMetric, Metric, OwnMetric
from esper.tasks.metrics import EXPLAINED
from esper.tasks.row_terms import ClassTerms, NumberTerms, RowTerms

RESAMPLES: Final = 1000
"""Bootstrap resamples of a part."""
OWN_RESAMPLES: Final = 200
"""The same for functions of the user, which are called for each."""
MIN_RESAMPLES: Final = 50
RESAMPLED: Final = 50_000_000
"""Numbers of all resamples together; large parts need fewer."""
AT_ONCE: Final = 2_000_000
"""Numbers of the resamples that are computed at a time."""
NORMAL_95: Final = 1.96
CONSTANT_CLASSES: Final = 16
"""Most frequent classes that are tried as a constant prediction."""
BATCH: Final = 512
CONSTANT_NUMBERS: Final = 4_000_000
"""Outputs of a constant prediction that are computed at a time."""


@dataclass(frozen=True, eq=False)
class Measured:
    """A metric of one network on a part, and how it varies with the samples."""

    value: float
    error: float
    """Standard error over samples."""
    sample_N: Doubles | None
    """Values whose mean is the metric, if it is a mean."""
    resampled_W: Doubles | None
    """Values of bootstrap resamples, if it is not; the same resamples for every network."""
    samples: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Metric of one network minus that of another on the same samples, with a 95 % interval."""

    value: float
    low: float
    high: float
    samples: int


def measure(metric: Metric, kept_N: Kept, targets: Tensor) -> Measured:
    """Metric of one network on a part, with its standard error."""
    value, samples = metric.value(kept_N, targets), len(targets)
    sample_N = metric.per_sample(kept_N, targets)
    if sample_N is not None:
        error = float(sample_N.std(ddof=1) / math.sqrt(samples)) if samples > 1 else math.nan
        return Measured(value, error, sample_N, None, samples)
    if samples < 2 or math.isnan(value):
        return Measured(value, math.nan, None, None, samples)
    resampled_W = np.concatenate(
        [
            metric.values(kept_N, targets, count_WN)
            for count_WN in _resamples(samples, kept_N.numel(), isinstance(metric, OwnMetric))
        ]
    )
    known_W = resampled_W[np.isfinite(resampled_W)]
    error = float(known_W.std(ddof=1)) if len(known_W) > 1 else math.nan
    return Measured(value, error, None, resampled_W, samples)


def _resamples(samples: int, numbers: int, own: bool) -> Iterator[Doubles]:
    """Yield how often each sample is drawn `[W, N]`, some resamples at a time.

    `numbers`: of all samples, from which the metric is computed.
    """
    generator = np.random.default_rng(stream_seed(0, "grow", "bootstrap"))
    most = OWN_RESAMPLES if own else RESAMPLES
    left = min(most, max(MIN_RESAMPLES, RESAMPLED // numbers))
    while left > 0:
        some = min(left, max(1, AT_ONCE // numbers))
        drawn = generator.integers(samples, size=(some, samples))
        drawn += samples * np.arange(some)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=some * samples)
        yield counts.reshape(some, samples).astype(np.float64)
        left -= some


def difference(one: Measured, other: Measured) -> Difference:
    """One minus the other, paired over the samples; its interval is NaN if it is not known."""
    value = one.value - other.value
    if one.sample_N is not None and other.sample_N is not None and one.samples > 1:
        apart_N = one.sample_N - other.sample_N
        half = NORMAL_95 * float(apart_N.std(ddof=1)) / math.sqrt(one.samples)
        return Difference(value, value - half, value + half, one.samples)
    if one.resampled_W is not None and other.resampled_W is not None:
        apart_W = one.resampled_W - other.resampled_W
        apart_W = apart_W[np.isfinite(apart_W)]
        if len(apart_W) > 1:
            low, high = np.quantile(apart_W, [0.025, 0.975])
            return Difference(value, float(low), float(high), one.samples)
    return Difference(value, math.nan, math.nan, one.samples)


# ---- networks ------------------------------------------------------------------------------------


def kept_outputs(
    metric: Metric, run: Callable[[slice], Tensor], targets: Tensor, batch_size: int = BATCH
) -> tuple[Kept, bool]:
    """What a metric keeps of one network on a part, and whether all outputs are finite.

    `run`: outputs `[B, ...]` of some samples.
    """
    kept, finite = [], True
    with torch.no_grad():
        for first in range(0, len(targets), batch_size):
            some = slice(first, first + batch_size)
            outputs = run(some).float()
            finite = finite and bool(torch.isfinite(outputs).all())
            kept.append(metric.keep(outputs[None], targets[some][None])[0])
    return torch.cat(kept), finite


def judge(metric: Metric, run: Callable[[slice], Tensor], targets: Tensor) -> Measured:
    """Metric of one network on a part; NaN if an output is not finite."""
    kept_N, finite = kept_outputs(metric, run, targets)
    if not finite:
        return Measured(math.nan, math.nan, None, None, len(targets))
    return measure(metric, kept_N, targets)


# ---- a constant prediction -----------------------------------------------------------------------


def constant_score(metric: Metric, chosen_on: Tensor, targets: Tensor) -> float:
    """Metric of the best constant prediction, NaN if none is known.

    `chosen_on`: targets that decide which constant is best, as those of val; `targets`: of the
    part that the metric is computed on.
    """
    if metric.name == EXPLAINED:
        return 0.0  # by definition
    if metric.reading is None:
        return math.nan
    by_label = isinstance(metric, LabelMetric | OwnMetric)  # others are best by frequencies
    outputs = _constant_outputs(metric.reading, chosen_on, CONSTANT_CLASSES if by_label else 0)
    scores = [_score_of(metric, output, chosen_on) for output in outputs]
    known = [index for index, score in enumerate(scores) if math.isfinite(score)]
    if not known:
        return math.nan
    best = max(known, key=lambda index: float(metric.merit(scores[index])))
    return scores[best] if targets is chosen_on else _score_of(metric, outputs[best], targets)


def _score_of(metric: Metric, output: Tensor, targets: Tensor) -> float:
    def run(some: slice) -> Tensor:
        return output.expand(len(targets[some]), *output.shape)

    size = max(1, min(BATCH, CONSTANT_NUMBERS // max(1, output.numel())))
    kept_N, _ = kept_outputs(metric, run, targets, size)
    try:
        return metric.value(kept_N, targets)
    except EsperError:  # a metric of the user that takes no constants
        return math.nan


def _constant_outputs(reading: RowTerms, targets: Tensor, classes: int) -> list[Tensor]:
    """Outputs of a sample that may be the best constant prediction for targets `[N, ...]`.

    `classes`: how many of the most frequent classes are tried one by one.
    """
    plain = reading.plain_targets(targets)
    if isinstance(reading, ClassTerms):
        return _constant_classes(reading, plain, classes)
    shape, numbers_ND = reading.shape, plain.double().reshape(len(plain), -1)
    if isinstance(reading, NumberTerms):
        found = [numbers_ND.mean(dim=0), numbers_ND.median(dim=0).values]
    else:
        share_D = numbers_ND.mean(dim=0).clamp(1e-6, 1 - 1e-6)
        found = [torch.logit(share_D), torch.ones_like(share_D), -torch.ones_like(share_D)]
    return [one.float().reshape(shape) for one in found]


def _constant_classes(reading: ClassTerms, labels: Tensor, most: int) -> list[Tensor]:
    """The frequencies of the classes, and each of the most frequent ones."""
    kept = labels.long().flatten()
    kept = kept[(kept != reading.ignore_index) & (kept >= 0) & (kept < reading.classes)]
    count_C = torch.bincount(kept, minlength=reading.classes).double()
    logits = [((count_C + 1e-6) / (count_C + 1e-6).sum()).log()]
    for common in count_C.argsort(descending=True, stable=True)[:most].tolist():
        one_hot_C = torch.zeros_like(count_C)
        one_hot_C[common] = 1.0
        logits.append(one_hot_C)
    ones = [1] * len(reading.shape)
    ones[reading.axis] = reading.classes
    return [one.float().view(ones).expand(reading.shape) for one in logits]
