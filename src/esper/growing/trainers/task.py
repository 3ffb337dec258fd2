"""What all runs of a search have in common: data, loss, metric, precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.growing.runs import Recipe
from esper.growing.trainers.data import BatchSource, ResidentOrder, Samples, StreamReader
from esper.growing.trainers.own_training import BUILT_IN, OwnTraining
from esper.kasmina.layers.modes import in_mode
from esper.kasmina.tracing import Inputs
from esper.kasmina.training.losses import RowLoss, cross_entropy
from esper.tasks.measuring import kept_outputs
from esper.tasks.metric_forms import Metric
from esper.tasks.objectives import TrainingLoss

VAL_BATCH: Final = 1024
"""Samples of a validation batch."""

ScalarLoss = Callable[[Tensor, Tensor], Tensor]
"""(outputs `[B, ...]`, targets `[B, ...]`) of one network -> its mean loss."""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Data, loss and metric of all runs, on one device."""

    inputs: Inputs
    """How networks are called."""
    train: Samples | StreamReader
    val: Samples
    loss: ScalarLoss
    metric: Metric
    device: torch.device
    amp: bool = False
    """Train in bfloat16 by autocast."""
    own: OwnTraining = BUILT_IN

    @property
    def smooths(self) -> bool:
        """Whether runs may smooth labels, each by a share of its own."""
        return self.loss is _labels_last and self.own.train_step is None

    @property
    def is_built_in(self) -> bool:
        """Whether no function of the user's is part of a batch, as far as is known."""
        return self.loss is _labels_last and not self.own.given

    def training_loss(self, recipe: Recipe) -> ScalarLoss:
        """The loss that a run minimises."""
        if not recipe.label_smoothing or not self.smooths:
            return self.loss
        return partial(_labels_last, smoothing=recipe.label_smoothing)

    def batches(self, batch_size: int, seed: int) -> BatchSource:
        """The batches of a run."""
        if isinstance(self.train, StreamReader):
            return self.train
        return ResidentOrder(self.train, batch_size, seed)

    def outputs(self, network: nn.Module, values: list[Tensor]) -> Tensor:
        """Outputs of a network for a batch of raw inputs."""
        out: Tensor = self.inputs.call(network, values)
        return out

    def judge(self, network: nn.Module) -> tuple[float, float, bool]:
        """Validation score and loss of a network, and whether its outputs are finite.

        In float32 and in eval mode; the modes of its parts are put back.
        """
        losses: list[Tensor] = []

        def run(some: slice) -> Tensor:
            values, targets = self.val.take(some)
            outputs = self.outputs(network, values).float()
            losses.append(self.loss(outputs, targets).detach() * len(targets))
            return outputs

        with in_mode(network, training=False):
            kept, finite = kept_outputs(self.metric, run, self.val.targets, VAL_BATCH)
        # SYNC: once a run, at its end.
        loss = float(torch.stack(losses).sum()) / len(self.val)
        score = self.metric.value(kept.cpu(), self.val.targets.cpu()) if finite else float("nan")
        return score, loss, finite


def scalar_loss(loss: TrainingLoss) -> ScalarLoss:
    """The loss of one network; torch's own function where that computes the same."""
    return _labels_last if loss.loss is cross_entropy else _MeanLoss(loss.loss)


@dataclass(frozen=True, slots=True)
class _MeanLoss:
    """The loss of rows for one network; worker processes can be sent it, unlike a closure."""

    loss: RowLoss

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(outputs[None], targets[None])[0]


def _labels_last(outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy; classes are the last axis."""
    labels = targets.flatten()
    return F.cross_entropy(outputs.flatten(0, -2), labels, label_smoothing=smoothing)
