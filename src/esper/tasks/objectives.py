"""What members are trained on and judged by: losses by name or by the user's function, and metrics.

A loss gives one number per row; a merit one per sample, whose mean is the score: an accuracy, or
the explained share `1 - loss / loss of the best constant prediction`. The best constant is found on
the training targets, so 0 means "no better than predicting the same for every sample". Explained
shares may be negative; clip them only where they are shown. `esper.grow` takes its losses from here
and its metrics from `tasks/metrics.py`.

Shape letters: R rows, B batch, N training samples, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from esper.kasmina.training.losses import IGNORED, RowLoss, cross_entropy
from esper.leyline.arrays import Doubles
from esper.leyline.errors import EsperError, unknown_name
from esper.tasks.member_functions import MemberFunction, fit_constant
from esper.tasks.row_terms import (
    BinaryTerms,
    ClassTerms,
    NumberTerms,
    RowTerms,
    aligned_shapes,
    class_axis,
    dtype_name,
)

Merit = Callable[[Tensor, Tensor], Tensor]
"""(outputs `[R, B, ...]`, targets `[R, B, ...]`) -> metric per sample `[R, B]`; its mean over
samples is the score."""

LossName = Literal["cross_entropy", "binary", "multilabel", "mse", "mae", "huber", "language"]
LOSSES: Final[tuple[LossName, ...]] = get_args(LossName)
TargetKind = Literal["classes", "binary", "multilabel", "numbers", "own"]

_KIND: Final[dict[str, TargetKind]] = {
    "cross_entropy": "classes", "language": "classes", "binary": "binary",
    "multilabel": "multilabel", "mse": "numbers", "mae": "numbers", "huber": "numbers",
}  # fmt: skip
_SCORED_BY_LOSS: Final = ("language", "mse", "mae", "huber")
"""Losses whose metric is the explained share."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingLoss:
    """A loss that fits one model and one data set."""

    name: str
    """Name of the loss, or of the user's function."""
    kind: TargetKind
    """What targets are; `own`: only the user's function knows."""
    shape: tuple[int, ...]
    """Outputs of one sample."""
    loss: RowLoss
    """Mean over the samples of each row `[R]`."""
    terms: RowTerms | MemberFunction
    """The same sample by sample."""
    check_targets: Callable[[Tensor, str], None]
    """Raise if targets of a part (by its name) have no meaning for the loss."""

    def best_constant(self, targets: Tensor) -> float:
        """Loss of the best constant prediction on targets `[N, ...]`."""
        if isinstance(self.terms, MemberFunction):
            return fit_constant(self.terms, targets, self.shape)
        return self.terms.constant_loss(targets)


@dataclass(frozen=True, eq=False, kw_only=True)
class Objective(TrainingLoss):
    """A loss and a metric that fit one model and one data set."""

    metric: str
    """Name shown to people."""
    merit: Merit
    """Metric of each sample `[R, B]`, higher is better."""
    constant_loss: float
    """Loss of the best constant prediction on the training targets; NaN if not measured."""

    def score(self, merit_R: Doubles) -> Doubles:
        """Return mean merits as scores: finite, and in 0..1."""
        return np.where(np.isfinite(merit_R), np.clip(merit_R, 0.0, 1.0), 0.0)

    def count_correct(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the metric of each row `[R]`, times its number of targets."""
        return self.merit(outputs, targets).mean(dim=1) * targets[0].numel()


@dataclass(frozen=True)
class _LossOptions:
    """Options of the built-in losses; each is refused where it does not apply."""

    class_weights: Sequence[float] | Tensor | None = None
    """One weight per class; a row's loss is the weighted mean, as in torch."""
    label_smoothing: float = 0.0
    ignore_index: int = IGNORED
    """Label of positions that count neither in the loss nor in the metric."""
    huber_delta: float = 1.0
    weighted: bool = False
    """Targets carry sample weights: see `with_sample_weights`."""


def with_sample_weights(targets: Tensor, weights: Tensor) -> Tensor:
    """Return float targets `[N, ..., 2]` of (target, weight) for `make_objective(weighted=True)`.

    >>> with_sample_weights(torch.tensor([3, 1]), torch.tensor([1.0, 0.5])).tolist()
    [[3.0, 1.0], [1.0, 0.5]]
    """
    check_sample_weights(weights, len(targets))
    spread = weights.float().view(-1, *[1] * (targets.ndim - 1)).expand(targets.shape)
    return torch.stack([targets.float(), spread], dim=-1)


def check_sample_weights(weights: Tensor, samples: int) -> None:
    """Raise unless there is one weight for each sample, finite and 0 or more."""
    if weights.ndim != 1 or len(weights) != samples:
        raise EsperError(
            f"sample weights of shape {tuple(weights.shape)} for {samples} samples: give one "
            f"number for each, [{samples}]"
        )
    if not bool(torch.isfinite(weights).all()) or bool((weights < 0).any()):
        bad = int(torch.nonzero(~torch.isfinite(weights) | (weights < 0))[0])
        raise EsperError(
            f"sample weight {float(weights[bad]):g} of sample {bad}: weights are finite and 0 or "
            f"more"
        )


def make_training_loss(
    loss: str | Callable[..., Any] = "auto",
    *,
    targets: Tensor,
    output_shape: Sequence[int],
    class_weights: Sequence[float] | Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = IGNORED,
    huber_delta: float = 1.0,
    weighted: bool = False,
) -> TrainingLoss:
    """Return the loss for training targets `[N, ...]` and outputs of `output_shape` a sample.

    `loss`: a name of `LOSSES`, "auto" (by dtype and shape of the targets), or a function
    `(outputs [B, ...], targets [B, ...]) -> number or numbers` for one network.
    """
    shape = tuple(int(size) for size in output_shape)
    options = _LossOptions(class_weights, label_smoothing, ignore_index, huber_delta, weighted)
    if not len(targets):
        raise EsperError("no training targets: a loss is chosen by their values")
    if callable(loss):
        return _own_loss(loss, shape, options)
    plain = targets[..., 0] if weighted else targets
    name = choose_loss(plain, shape, ignore_index) if loss == "auto" else loss
    if name not in LOSSES:
        raise unknown_name("loss", name, ("auto", *LOSSES, "a function"))
    _check_options(name, options)
    terms = _make_terms(name, plain, shape, options)
    terms.check_targets(targets, "train")
    made = TrainingLoss(
        name=name, kind=_KIND[name], shape=shape, loss=_row_loss(terms, plain, options),
        terms=terms, check_targets=terms.check_targets,
    )  # fmt: skip
    constant_loss = made.best_constant(targets)
    if not constant_loss > 0:
        raise EsperError(
            f"loss {name}: the best constant prediction has loss {constant_loss:g} on the training "
            f"targets, all {_first_value(plain)}; there is nothing to learn, check the targets"
        )
    return made


def make_objective(
    loss: str | Callable[..., Any] = "auto",
    *,
    targets: Tensor,
    output_shape: Sequence[int],
    **options: Any,
) -> Objective:
    """Return the loss of `make_training_loss`, which takes the options, with its metric.

    Labels are judged by accuracy, everything else by the explained share of the loss.
    """
    made = make_training_loss(loss, targets=targets, output_shape=output_shape, **options)
    if isinstance(made.terms, MemberFunction):
        return _own_objective(made, made.terms, targets)
    constant = made.best_constant(targets)
    if made.name in _SCORED_BY_LOSS:
        return _objective(made, "explained", _Explained(made.terms, constant), constant)
    return _objective(made, "accuracy", made.terms.accuracy, constant)


def _objective(made: TrainingLoss, metric: str, merit: Merit, constant_loss: float) -> Objective:
    return Objective(
        **{field.name: getattr(made, field.name) for field in fields(TrainingLoss)},
        metric=metric, merit=merit, constant_loss=constant_loss,
    )  # fmt: skip


def _first_value(targets: Tensor) -> str:
    return f"{float(targets.flatten()[0]):g}"


# ---- which loss ------------------------------------------------------------------------------


def choose_loss(targets: Tensor, output_shape: tuple[int, ...], ignore_index: int = IGNORED) -> str:
    """Return the name of the loss for targets `[N, ...]` and outputs of one sample."""
    places = tuple(targets.shape[1:])
    if targets.dtype.is_complex:
        raise EsperError("targets are complex numbers: give real ones, as in torch.view_as_real(y)")
    if _only_zero_one(targets):
        if _one_logit(output_shape, places):
            return "binary"
        if places == output_shape:
            _refuse_one_hot(targets)
            return "multilabel"
    if targets.dtype.is_floating_point:
        _refuse_float_labels(targets, output_shape)
        return "mse"
    if class_axis(output_shape, places) is None:
        raise EsperError(_labels_do_not_fit(targets, output_shape, ignore_index))
    return "language" if len(places) == 1 and output_shape[:-1] == places else "cross_entropy"


def _only_zero_one(targets: Tensor) -> bool:
    return targets.dtype == torch.bool or bool(((targets == 0) | (targets == 1)).all())


def _one_logit(output_shape: tuple[int, ...], places: tuple[int, ...]) -> bool:
    """Whether outputs are one logit for each place; dense ones have an axis of size 1."""
    if math.prod(output_shape) != math.prod(places):
        return False
    dense = len(output_shape) > 1 and 1 in (output_shape[0], output_shape[-1])
    return output_shape in ((), (1,)) or dense


def _refuse_one_hot(targets: Tensor) -> None:
    if targets.ndim == 2 and bool((targets.sum(dim=1) == 1).all()):
        raise EsperError(
            f"targets {tuple(targets.shape)} hold one 1 in each row, as one-hot labels do: give "
            f"y.argmax(1) for classes that exclude each other, or loss='multilabel'"
        )


def _refuse_float_labels(targets: Tensor, output_shape: tuple[int, ...]) -> None:
    """Raise if float targets are rather labels: whole numbers, and one output for each."""
    outputs = output_shape[-1] if output_shape else 1
    if targets.ndim != 1 or outputs < 2:
        return
    if bool((targets == targets.round()).all()) and float(targets.min()) >= 0:
        raise EsperError(
            f"targets are {dtype_name(targets)} of whole numbers up to {float(targets.max()):g}, "
            f"and the model has {outputs} outputs: for classes give integers, as in y.long(); for "
            f"numbers give the model one output"
        )


def _labels_do_not_fit(targets: Tensor, output_shape: tuple[int, ...], ignore_index: int) -> str:
    places = tuple(targets.shape[1:])
    if places == (1,) and len(output_shape) == 1 and output_shape[0] > 1:
        return (
            f"targets of shape {tuple(targets.shape)}: class labels are [{len(targets)}], one "
            f"index per sample, as in y.squeeze(1)"
        )
    if output_shape in ((), (1,)) and places in ((), (1,)):
        kept = targets[targets != ignore_index]
        return (
            f"labels {int(kept.min())} to {int(kept.max())} and a model with one output: give it "
            f"{int(kept.max()) + 1} outputs for classes, or loss='mse' to predict the number"
        )
    return (
        f"integer targets {places or 'of one number'} and outputs {output_shape or 'of one number'}"
        f" per sample: class labels need outputs {(*places, 'classes')}; numbers need loss='mse' "
        f"and outputs {places or (1,)}"
    ).replace("'classes'", "classes")


# ---- building --------------------------------------------------------------------------------


def _check_options(name: str, options: _LossOptions) -> None:
    if not 0 <= options.label_smoothing < 1:
        raise EsperError(f"label_smoothing={options.label_smoothing}: must be from 0 to below 1")
    if options.huber_delta <= 0:
        raise EsperError(f"huber_delta={options.huber_delta}: must be above 0")
    kind = _KIND[name]
    if options.label_smoothing and kind != "classes":
        raise EsperError(f"label_smoothing={options.label_smoothing}: not for loss {name!r}")
    if options.class_weights is not None and kind not in ("classes", "binary"):
        raise EsperError(f"class_weights: not for loss {name!r}, which has no classes")


def infer_terms(targets: Tensor, shape: tuple[int, ...]) -> RowTerms:
    """What targets `[N, ...]` and outputs mean, whatever the loss; raises if they do not fit."""
    return _make_terms(choose_loss(targets, shape), targets, shape, _LossOptions())


def _make_terms(
    name: str, targets: Tensor, shape: tuple[int, ...], options: _LossOptions
) -> RowTerms:
    places = tuple(targets.shape[1:])
    kind = _KIND[name]
    if kind == "classes":
        axis = class_axis(shape, places)
        if axis is None:
            raise EsperError(_labels_do_not_fit(targets, shape, options.ignore_index))
        return ClassTerms(
            name=name, shape=shape, axis=axis, weights_K=_weights(options, shape[axis]),
            smoothing=options.label_smoothing, ignore_index=options.ignore_index,
            weighted=options.weighted,
        )  # fmt: skip
    aligned_shapes(shape, places, name)
    if kind == "numbers":
        return NumberTerms(
            name=name, shape=shape, delta=options.huber_delta, weighted=options.weighted
        )
    return BinaryTerms(
        name=name, shape=shape, weights_K=_weights(options, 2), weighted=options.weighted
    )


def _weights(options: _LossOptions, classes: int) -> Tensor | None:
    if options.class_weights is None:
        return None
    weights_K = torch.as_tensor(options.class_weights, dtype=torch.float32)
    if weights_K.shape != (classes,):
        raise EsperError(
            f"class_weights of shape {tuple(weights_K.shape)}: the model has {classes} classes, "
            f"give one weight for each"
        )
    if not bool(((weights_K >= 0) & torch.isfinite(weights_K)).all()) or not weights_K.any():
        raise EsperError(
            f"class_weights={weights_K.tolist()}: must be finite, 0 or more, and not all 0"
        )
    return weights_K


def _row_loss(terms: RowTerms, targets: Tensor, options: _LossOptions) -> RowLoss:
    """The population's own cross-entropy where it computes the same: it is faster on a CPU."""
    if isinstance(terms, ClassTerms) and terms.plain and not options.weighted:
        # Its mean counts ignored positions, and it knows no other index.
        ignored = options.ignore_index != IGNORED or bool((targets == IGNORED).any())
        if not ignored and targets.dtype == torch.int64:
            return cross_entropy
    return terms


@dataclass(frozen=True, eq=False)
class _Explained:
    """Merit `1 - loss / loss of the best constant`, per sample."""

    terms: RowTerms | MemberFunction
    constant_loss: float

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the merit `[R, B]`."""
        return 1.0 - self.terms.per_sample(outputs, targets) / self.constant_loss


# ---- the user's own functions ----------------------------------------------------------------


def _own_loss(
    loss: Callable[..., Any], shape: tuple[int, ...], options: _LossOptions
) -> TrainingLoss:
    if options != _LossOptions():
        raise EsperError(
            "class_weights, label_smoothing, ignore_index, huber_delta and weighted are options of "
            "the built-in losses: your own loss function decides about them itself"
        )
    own = MemberFunction(loss)
    return TrainingLoss(
        name=own.name, kind="own", shape=shape, loss=own, terms=own, check_targets=_accept
    )


def _own_objective(made: TrainingLoss, own: MemberFunction, targets: Tensor) -> Objective:
    integers = not targets.dtype.is_floating_point
    axis = class_axis(made.shape, tuple(targets.shape[1:])) if integers else None
    if axis is None:
        constant_loss = explainable_loss(made, targets)
        return _objective(made, "explained", _Explained(own, constant_loss), constant_loss)
    terms = ClassTerms(name="accuracy", shape=made.shape, axis=axis)
    terms.check_targets(targets, "train")
    checked = replace(made, check_targets=terms.check_targets)
    return _objective(checked, "accuracy", terms.accuracy, float("nan"))


def explainable_loss(made: TrainingLoss, targets: Tensor) -> float:
    """Loss of the best constant prediction; raises if no share of it can be a score."""
    constant_loss = made.best_constant(targets)
    if not 0 < constant_loss < float("inf"):
        raise EsperError(
            f"loss {made.name}: the best constant prediction has loss {constant_loss:g}, so no "
            f"share of it can be the score; return losses above 0 (esper.grow: or give metric=)"
        )
    return constant_loss


def _accept(targets: Tensor, part: str) -> None:
    """Only the user's function knows what targets mean."""
