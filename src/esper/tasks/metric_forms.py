"""How metrics are computed over a whole part; `metrics.py` says which there are.

A metric keeps what it needs of the outputs of each sample (whether they are right, predicted
labels, probabilities, errors), and is computed from that and from all targets of the part. Samples
may count several times or not at all, which is how the bootstrap resamples them.

Shape letters: R rows (networks), B batch, N samples of a part, M labels of all its samples,
C columns (classes, or questions of multi-label targets), D numbers of a sample, W countings.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from esper.leyline.arrays import Doubles, Ints
from esper.leyline.errors import EsperError
from esper.leyline.user_errors import user_code
from esper.tasks.row_terms import BinaryTerms, ClassTerms, NumberTerms, RowTerms

Kept = Tensor
"""What a metric keeps of the outputs: `[R, B, ...]`, or `[N, ...]` of one network."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Metric(abc.ABC):
    """One number for the outputs of a network on a part."""

    name: str
    higher_is_better: bool = True
    best: float = 1.0
    """Value of perfect outputs; NaN: unknown."""
    in_points: bool = True
    """Whether differences are written in points, hundredths of a share in 0..1."""
    reading: RowTerms | None = None
    """What targets and outputs mean; None: only the user's functions know."""

    @abc.abstractmethod
    def keep(self, outputs: Tensor, targets: Tensor) -> Kept:
        """Return what is needed of outputs `[R, B, ...]`, without gradient."""

    @abc.abstractmethod
    def values(self, kept_N: Kept, targets: Tensor, count_WN: Doubles) -> Doubles:
        """Return the metric `[W]` of a part whose samples count so many times each."""

    def per_sample(self, kept_N: Kept, targets: Tensor) -> Doubles | None:
        """Return `[N]` whose mean is the metric; None if it is no mean over samples."""
        return None

    def check(self, targets: Tensor, part: str) -> None:
        """Raise if the metric is not defined for the targets of a part."""
        if self.reading is not None:
            self.reading.check_targets(targets, part)

    def value(self, kept_N: Kept, targets: Tensor) -> float:
        """Return the metric of a part, each sample counted once."""
        return float(self.values(kept_N, targets, np.ones((1, len(targets))))[0])

    def merit(self, value: Any) -> Any:
        """Return a value, or several, so that higher is better."""
        return value if self.higher_is_better else -value


# ---- means over samples --------------------------------------------------------------------------


Sums = tuple[Tensor, Tensor | None]
"""Terms `[R, B, ...]`, 0 where they do not count, and their weights; None: all 1."""


@dataclass(frozen=True, eq=False, kw_only=True)
class MeanMetric(Metric):
    """A weighted mean over all predictions of a part, perhaps scaled.

    Keeps the sum of the terms of each sample and the sum of their weights.
    """

    reading: RowTerms
    terms: Callable[[RowTerms, Tensor, Tensor], Sums]
    link: Callable[[Doubles], Doubles] | None = None
    """Applied to the mean, as in perplexity = exp(log loss); None: the mean itself."""

    def keep(self, outputs: Tensor, targets: Tensor) -> Kept:
        """`[R, B, 2]`: sums of terms and of weights."""
        terms, weights = self.terms(self.reading, outputs, targets)
        weights = torch.ones_like(terms) if weights is None else weights
        sums = [value.reshape(*value.shape[:2], -1) for value in (terms, weights)]
        return torch.stack([value.double().sum(dim=2) for value in sums], dim=2)

    def values(self, kept_N: Kept, targets: Tensor, count_WN: Doubles) -> Doubles:
        """Mean of the terms."""
        sum_W, weight_W = (count_WN @ kept_N.numpy()).T
        mean_W = sum_W / np.maximum(weight_W, np.finfo(np.float64).tiny)
        return mean_W if self.link is None else self.link(mean_W)

    def per_sample(self, kept_N: Kept, targets: Tensor) -> Doubles | None:
        """Terms of the samples, scaled so that their mean is that of all terms."""
        if self.link is not None:
            return None
        sum_N, weight_N = kept_N.numpy().T
        return np.asarray(sum_N / max(weight_N.mean(), np.finfo(np.float64).tiny))


def right(reading: RowTerms, outputs: Tensor, targets: Tensor) -> Sums:
    """Predictions that are right, over all samples and positions."""
    return reading.correct(outputs, reading.plain_targets(targets))


def all_right(reading: RowTerms, outputs: Tensor, targets: Tensor) -> Sums:
    """Samples whose answers are all right."""
    each, _ = right(reading, outputs, targets)
    return each.reshape(*each.shape[:2], -1).all(dim=2), None


def log_losses(reading: RowTerms, outputs: Tensor, targets: Tensor) -> Sums:
    """Minus the logarithms of the probabilities of the labels."""
    labels = reading.plain_targets(targets)
    if isinstance(reading, ClassTerms):
        log_probs = reading.classes_last(outputs).double().log_softmax(dim=-1)
        labels = labels.long()
        counted = labels != reading.ignore_index
        losses = -log_probs.gather(-1, labels.where(counted, 0).unsqueeze(-1)).squeeze(-1)
        return losses * counted, counted
    logits, answers = _paired(reading, outputs, labels)
    return F.binary_cross_entropy_with_logits(logits, answers, reduction="none"), None


def absolute_errors(reading: RowTerms, outputs: Tensor, targets: Tensor) -> Sums:
    """Errors of all numbers."""
    numbers, wanted = _paired(reading, outputs, reading.plain_targets(targets))
    return (numbers - wanted).abs(), None


def _paired(reading: RowTerms, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and targets in one shape, in float64."""
    assert isinstance(reading, BinaryTerms | NumberTerms)
    return reading.paired(outputs.double(), targets)


def explained_terms(
    constant_loss: float, reading: RowTerms, outputs: Tensor, targets: Tensor
) -> Sums:
    """Terms whose weighted mean is `1 - loss / constant_loss`."""
    losses, weights = reading.weighted_terms(outputs, targets)
    weights = torch.ones_like(losses) if weights is None else weights.to(losses.dtype)
    return weights - losses / constant_loss, weights


# ---- squared errors ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class SquaredErrors(Metric):
    """RMSE or R2: of each number of a sample, then their plain mean, as in scikit-learn."""

    reading: RowTerms

    def keep(self, outputs: Tensor, targets: Tensor) -> Kept:
        """`[R, B, D]`: squared errors."""
        numbers, wanted = _paired(self.reading, outputs, self.reading.plain_targets(targets))
        return ((numbers - wanted) ** 2).reshape(*numbers.shape[:2], -1)

    def values(self, kept_N: Kept, targets: Tensor, count_WN: Doubles) -> Doubles:
        """Root of the mean, or one minus the share of the variance that is left."""
        squares_WD = count_WN @ kept_N.numpy()
        total_W1 = count_WN.sum(axis=1, keepdims=True)
        if self.name == "rmse":
            return np.asarray(np.sqrt(squares_WD / total_W1).mean(axis=1))
        wanted_ND = self.reading.plain_targets(targets).double().reshape(len(targets), -1).numpy()
        centred_ND = wanted_ND - wanted_ND.mean(axis=0)
        sums_WD = count_WN @ centred_ND
        spread_WD = count_WN @ centred_ND**2 - sums_WD**2 / total_W1
        # Of equal targets rounding leaves a little; then R2 is 1 without errors, 0 with any.
        flat_WD = spread_WD <= 1e-12 * total_W1 * (centred_ND**2).mean(axis=0)
        left_WD = squares_WD / np.where(flat_WD, 1.0, spread_WD)
        left_WD = np.where(flat_WD, np.sign(squares_WD), left_WD)
        return np.asarray(1.0 - left_WD.mean(axis=1))

    def check(self, targets: Tensor, part: str) -> None:
        """R2 needs two samples."""
        super().check(targets, part)
        if self.name == "r2" and len(targets) < 2:
            raise EsperError(f"metric 'r2': {part} has 1 sample; give two or more, or metric='mae'")


# ---- predicted labels ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class LabelMetric(Metric):
    """A function of how often each class is predicted, present, and both."""

    reading: RowTerms
    formula: Callable[[Doubles, Doubles, Doubles], Doubles]
    """(hits, predicted, present), each `[W, C]` -> `[W]`."""

    def keep(self, outputs: Tensor, targets: Tensor) -> Kept:
        """`[R, B, ...]`: predicted labels."""
        if isinstance(self.reading, ClassTerms):
            return self.reading.classes_last(outputs).argmax(dim=-1)
        logits, _ = _paired(self.reading, outputs, self.reading.plain_targets(targets))
        return (logits > 0).long()

    def values(self, kept_N: Kept, targets: Tensor, count_WN: Doubles) -> Doubles:
        """The formula of the counts."""
        counts = (count_WN @ count_NC for count_NC in self._counts(kept_N, targets))
        return self.formula(*counts)

    def _counts(self, kept_N: Kept, targets: Tensor) -> tuple[Doubles, Doubles, Doubles]:
        """How often each sample has each class right, predicted and present, `[N, C]`."""
        samples = len(targets)
        predicted = kept_N.reshape(samples, -1).numpy()
        present, counted = _labels(self.reading, targets)
        if self.reading.multilabel:
            hits = predicted * present
            return hits.astype(float), predicted.astype(float), present.astype(float)
        classes = self.reading.classes if isinstance(self.reading, ClassTerms) else 2

        def count(labels: Ints, where: Any) -> Doubles:
            place = np.nonzero(where)[0] * classes + labels[where]
            held = np.bincount(place, minlength=samples * classes)
            return held.reshape(samples, classes).astype(np.float64)

        return (
            count(present, counted & (predicted == present)),
            count(predicted, counted),
            count(present, counted),
        )


def _labels(reading: RowTerms, targets: Tensor) -> tuple[Ints, Any]:
    """Labels of each sample and position `[N, P]`, and which of them count."""
    plain = reading.plain_targets(targets).reshape(len(targets), -1)
    if isinstance(reading, ClassTerms):
        labels = plain.long().numpy()
        counted = labels != reading.ignore_index
        return np.where(counted, labels, 0), counted
    labels = (plain > 0.5).long().numpy()
    return labels, np.ones(labels.shape, dtype=np.bool_)


def _ratio(above: Doubles, below: Doubles) -> Doubles:
    """`above / below`, NaN where that is 0 / 0."""
    unknown = np.full(above.shape, np.nan)
    return np.asarray(np.divide(above, below, out=unknown, where=below > 0))


def _mean_known(value_WC: Doubles) -> Doubles:
    """Mean over the columns that are known; NaN if none is."""
    known_WC = ~np.isnan(value_WC)
    return _ratio(np.where(known_WC, value_WC, 0.0).sum(axis=1), known_WC.sum(axis=1) + 0.0)


def balanced_accuracy(hits: Doubles, predicted: Doubles, present: Doubles) -> Doubles:
    """Mean recall of the classes that are present."""
    return _mean_known(_ratio(hits, present))


def f1(hits: Doubles, predicted: Doubles, present: Doubles) -> Doubles:
    """Of class 1."""
    return np.asarray(np.nan_to_num(_ratio(2.0 * hits, predicted + present))[:, -1])


def f1_macro(hits: Doubles, predicted: Doubles, present: Doubles) -> Doubles:
    """Of the classes that are present or predicted."""
    return np.nan_to_num(_mean_known(_ratio(2.0 * hits, predicted + present)))


def f1_labels(hits: Doubles, predicted: Doubles, present: Doubles) -> Doubles:
    """Of all questions; 0 for one that is neither asked nor answered."""
    return np.asarray(np.nan_to_num(_ratio(2.0 * hits, predicted + present)).mean(axis=1))


# ---- rankings ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class RankMetric(Metric):
    """A function of the order of the probabilities: each class against the rest, then the mean."""

    reading: RowTerms
    formula: Callable[[Doubles, Doubles], Doubles]
    """(true positives, false positives) `[W, G]` down to each threshold -> `[W]`."""

    def keep(self, outputs: Tensor, targets: Tensor) -> Kept:
        """`[R, B, ..., C]`: probabilities; of two classes, or of yes, what orders like them."""
        if not isinstance(self.reading, ClassTerms):
            logits, _ = _paired(self.reading, outputs, self.reading.plain_targets(targets))
            return logits if self.reading.multilabel else logits.unsqueeze(-1)
        logits = self.reading.classes_last(outputs).double()
        if self.reading.classes == 2:
            return logits[..., 1:] - logits[..., :1]
        return logits.softmax(dim=-1)

    def values(self, kept_N: Kept, targets: Tensor, count_WN: Doubles) -> Doubles:
        """Mean of the columns."""
        score_MC, truth_MC, sample_M = self._columns(kept_N, targets)
        columns = []
        for score_M, truth_M in zip(score_MC.T, truth_MC.T, strict=True):
            order = np.argsort(-score_M, kind="stable")
            ends = np.append(np.flatnonzero(np.diff(score_M[order])), len(order) - 1)
            weight_WM = count_WN[:, sample_M[order]]
            found_WM = np.cumsum(weight_WM * truth_M[order], axis=1)
            every_WM = np.cumsum(weight_WM, axis=1)
            columns.append(self.formula(found_WM[:, ends], (every_WM - found_WM)[:, ends]))
        return _mean_known(np.stack(columns, axis=1))

    def _columns(self, kept_N: Kept, targets: Tensor) -> tuple[Doubles, Any, Ints]:
        """Scores and truths `[M, C]` of all labels that count, and the sample of each."""
        labels, counted = _labels(self.reading, targets)
        if self.reading.multilabel:
            return kept_N.reshape(len(labels), -1).numpy(), labels > 0, np.arange(len(labels))
        score_MC = kept_N.reshape(*labels.shape, -1).numpy()[counted]
        classes = np.arange(score_MC.shape[1]) if score_MC.shape[1] > 1 else np.array([1])
        return score_MC, labels[counted][:, None] == classes, np.nonzero(counted)[0]

    def check(self, targets: Tensor, part: str) -> None:
        """Every class needs samples that have it and samples that do not."""
        super().check(targets, part)
        labels, counted = _labels(self.reading, targets)
        if self.reading.multilabel:
            share = labels.mean(axis=0)
            lacking = np.flatnonzero((share == 0) | (share == 1))
            what = "label"
        else:
            classes = self.reading.classes if isinstance(self.reading, ClassTerms) else 2
            held = np.bincount(labels[counted], minlength=classes)
            lacking = np.flatnonzero((held == 0) | (held == counted.sum()))
            what = "class"
        if lacking.size:
            raise EsperError(
                f"metric {self.name!r}: {part} needs samples with and without {what} {lacking[0]}; "
                f"give others, or metric='accuracy'"
            )


def area(found_WG: Doubles, false_WG: Doubles) -> Doubles:
    """Area under the ROC curve by trapezoids."""
    widths = np.diff(false_WG, prepend=0.0, axis=1)
    heights = found_WG - np.diff(found_WG, prepend=0.0, axis=1) / 2.0
    return _ratio((widths * heights).sum(axis=1), found_WG[:, -1] * false_WG[:, -1])


def average_precision(found_WG: Doubles, false_WG: Doubles) -> Doubles:
    """Precision at each threshold, weighted by the recall it adds."""
    precision_WG = np.nan_to_num(_ratio(found_WG, found_WG + false_WG))
    steps_WG = np.diff(found_WG, prepend=0.0, axis=1)
    return _ratio((precision_WG * steps_WG).sum(axis=1), found_WG[:, -1])


# ---- the user's own ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnMetric(Metric):
    """The user's function of all outputs and targets of a part, on the CPU.

    It returns one number, or one for each sample, which are averaged.
    """

    function: Callable[[Tensor, Tensor], Any]

    def keep(self, outputs: Tensor, targets: Tensor) -> Kept:
        """Everything."""
        return outputs

    def values(self, kept_N: Kept, targets: Tensor, count_WN: Doubles) -> Doubles:
        """The function of the samples; NaN if outputs are not finite."""
        if not bool(torch.isfinite(kept_N).all()):
            return np.full(len(count_WN), np.nan)
        targets, found = self._plain(targets), []
        for count_N in count_WN:
            if (count_N == 1).all():
                found.append(float(self._called(kept_N, targets).mean()))
                continue
            index = torch.from_numpy(np.repeat(np.arange(len(targets)), count_N.astype(np.int64)))
            try:
                found.append(float(self._called(kept_N[index], targets[index]).mean()))
            except EsperError:  # not defined for this resample, as without one of the classes
                found.append(math.nan)
        return np.array(found)

    def per_sample(self, kept_N: Kept, targets: Tensor) -> Doubles | None:
        """What the function returns, if that is one number for each sample."""
        if not bool(torch.isfinite(kept_N).all()):
            return None
        found = self._called(kept_N, self._plain(targets))
        return found if found.shape == (len(targets),) and len(targets) > 1 else None

    def _plain(self, targets: Tensor) -> Tensor:
        """Targets as the user gave them, without the weights of samples."""
        if self.reading is None or not self.reading.weighted:
            return targets
        plain = self.reading.plain_targets(targets)
        return plain.long() if isinstance(self.reading, ClassTerms) else plain

    def _called(self, outputs: Tensor, targets: Tensor) -> Doubles:
        hint = "it is called with (outputs, targets) of all samples"
        with torch.no_grad(), user_code(f"metric {self.name} fails", hint):
            value = self.function(outputs, targets)
        if isinstance(value, Tensor):
            value = value.detach().cpu().double().numpy()
        try:
            found = np.asarray(value + 0.0, dtype=np.float64)  # a number, and not None
        except (TypeError, ValueError):
            raise EsperError(
                f"metric {self.name} returns a {type(value).__name__}: return a number, or "
                f"one for each sample"
            ) from None
        if not found.size:
            raise EsperError(f"metric {self.name} returns nothing: return a number")
        rows = found.ndim and len(found) == len(targets)
        return found.reshape(len(found), -1).mean(axis=1) if rows else found
