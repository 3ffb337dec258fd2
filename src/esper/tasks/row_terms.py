"""The built-in losses, term by term: what each sample of each row contributes.

Calling `RowTerms` gives the weighted mean over the terms of a row, `per_sample` the same numbers
kept apart: their mean over the samples of a batch is the loss of the row. Rows whose terms all have
weight 0 (every label ignored) have loss 0.

Shape letters: R rows, B batch, N samples, K classes, P positions of a sample, D numbers of one.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass, field
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.kasmina.training.losses import IGNORED
from esper.leyline.errors import EsperError

_HUBER_HALVINGS: Final = 60
"""Steps of the bisection for the best constant under Huber's loss."""


def dtype_name(tensor: Tensor) -> str:
    """Name of a dtype as people write it.

    >>> dtype_name(torch.zeros(1))
    'float32'
    """
    return str(tensor.dtype).removeprefix("torch.")


def class_axis(output_shape: tuple[int, ...], places: tuple[int, ...]) -> int | None:
    """Return the axis of a sample's outputs that counts classes; None if the labels do not fit.

    Labels `[N, *places]` fit outputs `[*places, K]`, or torch's layout `[K, *places]`. Where both
    fit, sequences have the classes last and images first, as in torch.

    >>> class_axis((10,), ()), class_axis((7, 50), (7,)), class_axis((3, 8, 8), (8, 8))
    (0, 1, 0)
    """
    last = len(output_shape) - 1
    if last != len(places) or output_shape in ((), (1,)):
        return None
    fits_last = output_shape[:-1] == places and output_shape[-1] > 1
    fits_first = output_shape[1:] == places and output_shape[0] > 1
    if fits_first and (len(places) > 1 or not fits_last):
        return 0
    return last if fits_last else None


def aligned_shapes(output: tuple[int, ...], target: tuple[int, ...], name: str) -> None:
    """Raise unless outputs and targets of a sample differ at most in one axis of size 1."""
    if output != target and not _one_axis_apart(output, target):
        raise EsperError(
            f"loss {name!r}: outputs {output or 'of one number'} and targets "
            f"{target or 'of one number'} per sample would broadcast to wrong pairs; give the "
            f"model {math.prod(target)} output{'s' * (math.prod(target) != 1)}, or targets of "
            f"shape (samples{''.join(f', {size}' for size in output)})"
        )


def _one_axis_apart(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    longer, shorter = (one, other) if len(one) > len(other) else (other, one)
    return longer in ((*shorter, 1), (1, *shorter))


def row_sums(values: Tensor, dim: int = 1) -> Tensor:
    """Sum over all axes from `dim` on, the same for a row whatever the number of rows.

    On a GPU the order of a sum depends on it, and CUDA graphs pad the rows: in float64 the orders
    agree after rounding.
    """
    return values.flatten(dim).sum(dim=dim, dtype=torch.float64).to(values.dtype)


@dataclass(frozen=True, eq=False, kw_only=True)
class RowTerms(abc.ABC):
    """A built-in loss for outputs of one shape."""

    name: str
    shape: tuple[int, ...]
    """Outputs of one sample."""
    weighted: bool = False
    """The last axis of the targets is (target, weight)."""
    weights_K: Tensor | None = None
    """Weights of the classes."""
    _copies: dict[tuple[torch.device, torch.dtype], Tensor] = field(default_factory=dict)
    """Weights by device and dtype, because captured graphs cannot copy from the host."""

    @property
    def multilabel(self) -> bool:
        """Whether a sample has several labels, each yes or no."""
        return self.name == "multilabel"

    def __post_init__(self) -> None:
        # Saved populations remember their loss by this name.
        object.__setattr__(self, "__qualname__", self.name)

    @abc.abstractmethod
    def terms(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return weighted losses `[R, B, ...]` and their weights; None: all 1."""

    def correct(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return correct predictions `[R, B, ...]` as bool, and which count; None: all."""
        raise EsperError(f"loss {self.name!r} has no accuracy: its metric is 'explained'")

    @abc.abstractmethod
    def constant_loss(self, targets: Tensor) -> float:
        """Return the loss of the best constant prediction on targets `[N, ...]`."""

    @abc.abstractmethod
    def check_targets(self, targets: Tensor, part: str) -> None:
        """Raise if a target has no meaning for this loss."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the weighted mean of each row `[R]`."""
        losses, weights = self.weighted_terms(outputs, targets)
        if weights is None:
            return row_sums(losses) / losses[0].numel()
        return row_sums(losses) / _total(weights)

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return `[R, B]`, whose mean over B is the row's loss."""
        losses, weights = self.weighted_terms(outputs, targets)
        per_RB = losses.reshape(*losses.shape[:2], -1)
        if weights is None:
            return row_sums(per_RB, 2) / per_RB.shape[2]
        return row_sums(per_RB, 2) * losses.shape[1] / _total(weights)[:, None]

    def accuracy(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return `[R, B]`: the share of correct predictions; ignored positions do not count."""
        right, counted = self.correct(outputs, self.plain_targets(targets))
        right_RBP = right.reshape(*right.shape[:2], -1).to(torch.float32)
        if counted is None:
            return right_RBP.mean(dim=2)
        number_R = counted.flatten(1).sum(dim=1).clamp(min=1)
        return right_RBP.sum(dim=2) * right.shape[1] / number_R[:, None]

    def _weights_on(self, values: Tensor) -> Tensor | None:
        """Return the class weights on the device and in the dtype of `values`."""
        if self.weights_K is None:
            return None
        key = values.device, values.dtype
        if key not in self._copies:
            self._copies[key] = self.weights_K.to(values)
        return self._copies[key]

    def plain_targets(self, targets: Tensor) -> Tensor:
        """Targets without the weights of their samples."""
        return targets[..., 0] if self.weighted else targets

    def weighted_terms(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return losses `[R, B, ...]` times their weights, and these; those of samples included."""
        wide = outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs
        losses, weights = self.terms(wide, self.plain_targets(targets))
        if not self.weighted:
            return losses, weights
        own = targets[..., 1].reshape(losses.shape).to(losses.dtype)
        return losses * own, own if weights is None else weights * own


def _total(weights: Tensor) -> Tensor:
    total_R = row_sums(weights)
    return torch.where(total_R > 0, total_R, torch.ones_like(total_R))


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassTerms(RowTerms):
    """Cross-entropy over classes that exclude each other, at one or more positions."""

    axis: int
    """Axis of a sample's outputs that counts classes."""
    smoothing: float = 0.0
    ignore_index: int = IGNORED

    @property
    def plain(self) -> bool:
        """Whether this is cross-entropy without options, classes last."""
        last = self.axis == len(self.shape) - 1
        return last and self.weights_K is None and not self.smoothing

    @property
    def classes(self) -> int:
        """K."""
        return self.shape[self.axis]

    def terms(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """Cross-entropy of each position in nats, 0 where ignored."""
        logits, labels = self.classes_last(outputs), targets.long()
        weights_K = self._weights_on(logits)
        losses = F.cross_entropy(
            logits.reshape(-1, self.classes),
            labels.reshape(-1),
            weight=weights_K,
            ignore_index=self.ignore_index,
            reduction="none",
            label_smoothing=self.smoothing,
        )
        counted = labels != self.ignore_index
        if weights_K is None:
            weights = counted.to(losses.dtype)
        else:
            weights = weights_K[labels.where(counted, 0)] * counted
        return losses.view(labels.shape), weights

    def correct(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """Whether the largest output is the label's."""
        labels = targets.long()
        counted = labels != self.ignore_index
        return (self.classes_last(outputs).argmax(dim=-1) == labels) & counted, counted

    def constant_loss(self, targets: Tensor) -> float:
        """Loss of predicting the class frequencies, weighted and smoothed as the loss is."""
        count_K = self._counts(targets)
        weights_K = torch.ones_like(count_K) if self.weights_K is None else self.weights_K.double()
        smooth = self.smoothing * count_K.sum() / self.classes
        mass_K = weights_K * ((1 - self.smoothing) * count_K + smooth)
        losses_K = torch.special.xlogy(mass_K, mass_K / mass_K.sum())
        return float(-losses_K.sum() / (weights_K * count_K).sum())

    def check_targets(self, targets: Tensor, part: str) -> None:
        """Raise if labels are not 0 to K - 1."""
        targets = self.plain_targets(targets)
        if targets.dtype.is_floating_point and bool((targets != targets.round()).any()):
            raise EsperError(
                f"{part} targets are {dtype_name(targets)} such as "
                f"{float(targets[targets != targets.round()][0]):g}: loss {self.name!r} takes "
                f"class indices, as in y.long(); to predict numbers give loss='mse'"
            )
        labels = targets.long()
        wrong = ((labels < 0) | (labels >= self.classes)) & (labels != self.ignore_index)
        kept = labels[labels != self.ignore_index]
        if not kept.numel():
            raise EsperError(
                f"{part}: all labels are {self.ignore_index}, the one that is ignored; give labels"
            )
        if bool(wrong.any()):
            sample = int(torch.nonzero(wrong)[0][0])
            raise EsperError(_wrong_labels(labels, kept, wrong, sample, self.classes, part))

    def _counts(self, targets: Tensor) -> Tensor:
        """Return the number of labels of each class `[K]`, by sample weight."""
        labels = self.plain_targets(targets).long().flatten()
        kept = (labels >= 0) & (labels < self.classes) & (labels != self.ignore_index)
        weights = targets[..., 1].flatten()[kept].double() if self.weighted else None
        return torch.bincount(labels[kept], weights, minlength=self.classes).double()

    def classes_last(self, outputs: Tensor) -> Tensor:
        """Outputs `[R, B, ..., K]`."""
        return outputs.movedim(2 + self.axis, -1)


def _wrong_labels(
    labels: Tensor, kept: Tensor, wrong: Tensor, sample: int, classes: int, part: str
) -> str:
    least, most = int(kept.min()), int(kept.max())
    if least == 1 and most == classes:
        return (
            f"{part} labels are 1 to {classes}, the model has {classes} outputs: labels count "
            f"from 0, as in y - 1"
        )
    value = int(labels[wrong][0])
    if least < 0:
        return (
            f"{part}: label {value} of sample {sample} is negative; labels are 0 to "
            f"{classes - 1}, and ignore_index= names one to leave out"
        )
    return (
        f"{part}: label {value} of sample {sample}, the model has {classes} outputs, so labels are "
        f"0 to {classes - 1}; give it {most + 1} outputs, or correct the labels"
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class _PairedTerms(RowTerms):
    """A loss that pairs every output with one target."""

    def paired(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs in the shape of the targets, and targets as numbers."""
        return outputs.reshape(targets.shape), targets.to(outputs.dtype)

    def constant_loss(self, targets: Tensor) -> float:
        """Loss of the best constant of each output alone; sample weights do not move it."""
        plain = self.plain_targets(targets)
        constants = self._constants(plain.double().reshape(len(plain), -1))
        outputs = constants.reshape(plain.shape[1:]).expand(plain.shape)
        with torch.no_grad():
            return float(self(outputs.unsqueeze(0), targets.unsqueeze(0)))

    @abc.abstractmethod
    def _constants(self, numbers_ND: Tensor) -> Tensor:
        """Return the best constant of each column `[D]`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class BinaryTerms(_PairedTerms):
    """Logistic loss of one logit per yes-or-no question: binary and multi-label targets.

    `weights_K` are those of no and yes.
    """

    def terms(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logistic loss of each answer in nats."""
        logits, answers = self.paired(outputs, targets)
        losses = F.binary_cross_entropy_with_logits(logits, answers, reduction="none")
        weights_K = self._weights_on(losses)
        if weights_K is None:
            return losses, None
        no, yes = weights_K.unbind()
        weights = answers * yes + (1 - answers) * no
        return losses * weights, weights

    def correct(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """Whether the sign of the logit is right."""
        logits, answers = self.paired(outputs, targets)
        return (logits > 0) == (answers > 0.5), None

    def check_targets(self, targets: Tensor, part: str) -> None:
        """Raise if a target is not in 0..1."""
        targets = self.plain_targets(targets)
        wrong = ~((targets >= 0) & (targets <= 1)) if targets.dtype != torch.bool else None
        if wrong is not None and bool(wrong.any()):
            sample = int(torch.nonzero(wrong)[0][0])
            raise EsperError(
                f"{part}: target {float(targets[wrong][0]):g} of sample {sample}, loss "
                f"{self.name!r} takes 0 and 1; for labels -1 and 1 give (y + 1) / 2"
            )

    def _constants(self, numbers_ND: Tensor) -> Tensor:
        share_D = numbers_ND.mean(dim=0)
        if self.weights_K is not None:
            no, yes = self.weights_K.double().unbind()
            share_D = share_D * yes / (share_D * yes + (1 - share_D) * no).clamp(min=1e-30)
        return torch.logit(share_D.clamp(1e-12, 1 - 1e-12))


@dataclass(frozen=True, eq=False, kw_only=True)
class NumberTerms(_PairedTerms):
    """Squared, absolute or Huber's error of each number."""

    delta: float = 1.0
    """Error from which Huber's loss is linear."""

    def terms(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """Error of each number."""
        numbers, wanted = self.paired(outputs, targets)
        if self.name == "mse":
            return F.mse_loss(numbers, wanted, reduction="none"), None
        if self.name == "mae":
            return F.l1_loss(numbers, wanted, reduction="none"), None
        return F.huber_loss(numbers, wanted, reduction="none", delta=self.delta), None

    def check_targets(self, targets: Tensor, part: str) -> None:
        """Raise if a number is not finite."""
        targets = self.plain_targets(targets)
        wrong = ~torch.isfinite(targets)
        if bool(wrong.any()):
            sample = int(torch.nonzero(wrong)[0][0])
            raise EsperError(
                f"{part}: target {float(targets[wrong][0]):g} of sample {sample} is not finite; "
                f"leave the sample out"
            )

    def _constants(self, numbers_ND: Tensor) -> Tensor:
        if self.name == "mse":
            return numbers_ND.mean(dim=0)
        if self.name == "mae":
            return numbers_ND.median(dim=0).values
        low_D, high_D = numbers_ND.amin(dim=0), numbers_ND.amax(dim=0)
        for _ in range(_HUBER_HALVINGS):
            middle_D = (low_D + high_D) / 2
            # Errors clipped to delta are the slope of the loss: bisect for slope 0.
            above_D = (numbers_ND - middle_D).clamp(-self.delta, self.delta).sum(dim=0) > 0
            low_D, high_D = middle_D.where(above_D, low_D), high_D.where(above_D, middle_D)
        return (low_D + high_D) / 2
