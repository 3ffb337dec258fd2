"""Which metrics `esper.grow` knows, by name, and what they are for; scikit-learn's definitions."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

import numpy as np
from torch import Tensor, nn

from esper.leyline.errors import EsperError, UnknownNameError, shown, unknown_name
from esper.tasks import metric_forms as forms
from esper.tasks.member_functions import MemberFunction, function_name
from esper.tasks.metric_forms import Metric
from esper.tasks.objectives import TrainingLoss, explainable_loss, infer_terms
from esper.tasks.row_terms import ClassTerms, NumberTerms, RowTerms

Reading = Literal["classes", "binary", "multilabel", "numbers"]
"""What targets mean."""


Maker = Callable[..., Metric]
"""(name=, reading=) -> the metric, for what targets and outputs mean."""


def _f1(name: str, reading: RowTerms) -> Metric:
    if isinstance(reading, ClassTerms) and reading.classes != 2:
        raise EsperError(
            f"metric 'f1' is for two classes, the model has {reading.classes}: give "
            f"metric='f1_macro'"
        )
    return forms.LabelMetric(name=name, reading=reading, formula=forms.f1)


def _mean(terms: Callable[..., forms.Sums], **options: Any) -> Maker:
    return partial(forms.MeanMetric, terms=terms, **options)


def _labels(formula: Callable[..., Any]) -> Maker:
    return partial(forms.LabelMetric, formula=formula)


def _one_label(maker: Maker) -> dict[Reading, Maker]:
    return {"classes": maker, "binary": maker}


def _labelled(maker: Maker) -> dict[Reading, Maker]:
    return _one_label(maker) | {"multilabel": maker}


_ERRORS: Final[dict[str, Any]] = {"higher_is_better": False, "best": 0.0, "in_points": False}
METRICS: Final[dict[str, dict[Reading, Maker]]] = {
    "accuracy": _one_label(_mean(forms.right)) | {"multilabel": _mean(forms.all_right)},
    "label_accuracy": {"multilabel": _mean(forms.right)},
    "balanced_accuracy": _one_label(_labels(forms.balanced_accuracy)),
    "f1": _one_label(_f1),
    "f1_macro": _one_label(_labels(forms.f1_macro)) | {"multilabel": _labels(forms.f1_labels)},
    "roc_auc": _labelled(partial(forms.RankMetric, formula=forms.area)),
    "average_precision": _labelled(partial(forms.RankMetric, formula=forms.average_precision)),
    "log_loss": _one_label(_mean(forms.log_losses, **_ERRORS)),
    "perplexity": {"classes": _mean(forms.log_losses, link=np.exp, **_ERRORS | {"best": 1.0})},
    "r2": {"numbers": partial(forms.SquaredErrors, in_points=False)},
    "mae": {"numbers": _mean(forms.absolute_errors, **_ERRORS)},
    "rmse": {"numbers": partial(forms.SquaredErrors, **_ERRORS)},
}
"""Name -> how it is made, by what targets it is for. `explained`, a share of the loss, besides."""
_OTHER_NAMES: Final = {
    "acc": "accuracy", "auc": "roc_auc", "auroc": "roc_auc", "ap": "average_precision",
    "nll": "log_loss", "logloss": "log_loss", "ppl": "perplexity", "macro_f1": "f1_macro",
    "mean_absolute_error": "mae", "root_mean_squared_error": "rmse",
}  # fmt: skip
"""Of metrics elsewhere, for a hint."""
EXPLAINED: Final = "explained"
NAMES: Final = ("auto", *METRICS, EXPLAINED, "a function")


def make_metric(
    wanted: str | Callable[..., Any], loss: TrainingLoss, train: Tensor, whole: Tensor
) -> Metric:
    """Return the metric for a loss.

    `wanted`: a name, "auto", or a function `(outputs [N, ...], targets [N, ...])` of a whole part
    that returns one number, or one for each sample, better when higher. `train`: training targets,
    or the first of a stream; `whole`: targets to measure the best constant prediction on.
    """
    if callable(wanted):
        function = copy.deepcopy(wanted).cpu() if isinstance(wanted, nn.Module) else wanted
        return _own(function_name(wanted), function, loss)
    terms = _terms(loss, train)
    name = _default(loss, terms) if wanted == "auto" else wanted
    if name == EXPLAINED:
        return _explained(loss, explainable_loss(loss, whole))
    if name not in METRICS:
        raise _unknown(name)
    if isinstance(terms, EsperError):
        raise EsperError(f"metric {name!r}: {terms}")
    reading = _reading(loss, terms)
    if reading not in METRICS[name]:
        fitting = [other for other, makers in METRICS.items() if reading in makers]
        raise EsperError(
            f"metric {name!r}: not for loss {loss.name!r}; give {', '.join(fitting)}, "
            f"{EXPLAINED} or a function"
        )
    return METRICS[name][reading](name=name, reading=terms)


def _unknown(name: str) -> EsperError:
    """An error with the metric that is meant, as far as that is known.

    >>> str(_unknown("neg_mean_absolute_error")).partition("?")[0]
    "unknown metric 'neg_mean_absolute_error': did you mean 'mae'"
    """
    plain = name.lower().replace("-", "_").removeprefix("neg_").removesuffix("_score")
    meant = _OTHER_NAMES.get(plain, plain)
    if meant in METRICS:
        return UnknownNameError(f"unknown metric {shown(name)}: did you mean {meant!r}?")
    return unknown_name("metric", name, NAMES)


def _terms(loss: TrainingLoss, train: Tensor) -> RowTerms | EsperError:
    """What targets and outputs mean; under the user's own loss what they look like."""
    if isinstance(loss.terms, RowTerms):
        return loss.terms
    try:
        terms = infer_terms(train, loss.shape)
        terms.check_targets(train, "train")
    except EsperError as error:
        return error
    return terms


def _reading(loss: TrainingLoss, terms: RowTerms) -> Reading:
    if isinstance(terms, ClassTerms):
        return "classes"
    if isinstance(terms, NumberTerms):
        return "numbers"
    return "multilabel" if terms.multilabel else "binary"


def _default(loss: TrainingLoss, terms: RowTerms | EsperError) -> str:
    """Metric of a loss: accuracy of labels, R2 of squared errors, else the explained share."""
    if loss.kind == "own":
        return "accuracy" if isinstance(terms, ClassTerms) else EXPLAINED
    named = {"cross_entropy": "accuracy", "binary": "accuracy", "multilabel": "label_accuracy"}
    return {**named, "mse": "r2"}.get(loss.name, EXPLAINED)


def _explained(loss: TrainingLoss, constant_loss: float) -> Metric:
    """One minus the loss relative to that of the best constant prediction."""
    if isinstance(loss.terms, RowTerms):
        terms = partial(forms.explained_terms, constant_loss)
        return forms.MeanMetric(name=EXPLAINED, reading=loss.terms, terms=terms, in_points=False)
    own = MemberFunction(loss.terms.function).function  # a copy, if it has weights
    if isinstance(own, nn.Module):
        own.cpu()

    def explained(outputs: Tensor, targets: Tensor) -> Any:
        return 1.0 - own(outputs, targets) / constant_loss

    return _own(EXPLAINED, explained, loss, best=1.0)


def _own(
    name: str, function: Callable[..., Any], loss: TrainingLoss, best: float = math.nan
) -> Metric:
    return forms.OwnMetric(
        name=name, function=function, best=best, in_points=False,
        reading=loss.terms if isinstance(loss.terms, RowTerms) else None,
    )  # fmt: skip
