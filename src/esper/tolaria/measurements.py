"""The measurements of one step: typed host copies, fetched from the device in one transfer.

Shape letters: E members, R rows (members first, then coalitions of their seeds), S slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from torch import Tensor

from esper.device.transfer import fetch
from esper.leyline.arrays import Bools, Doubles, Ints
from esper.tolaria.batch_ops import RowTotals, TrainTotals


@dataclass(frozen=True, slots=True, eq=False)
class TrainMeasurements:
    """Means over the train batches of a step; NaN for members that trained on none."""

    loss_E: Doubles
    accuracy_E: Doubles
    """Share of correct predictions, 0..1."""
    shadow_loss_ES: Doubles
    """NaN where no seed is in TRAINING."""
    host_grad_norm_E: Doubles
    """Before clipping."""
    grad_norm_ES: Doubles
    """Before clipping; NaN where no seed trains."""
    batches_E: Ints
    """Batches each member trained on."""


@dataclass(frozen=True, slots=True, eq=False)
class RowMeasurements:
    """Validation of each row."""

    loss_sum_R: Doubles
    """All `_sum` fields are sums over samples."""
    merit_sum_R: Doubles
    gain_sum_R: Doubles
    """Merit of the row's member with all seeds, minus the row's."""
    gain_square_sum_R: Doubles
    samples: int

    @property
    def loss_R(self) -> Doubles:
        """Mean over samples."""
        return self.loss_sum_R / self.samples

    @property
    def merit_R(self) -> Doubles:
        """Mean over samples; the accuracy for classification."""
        return self.merit_sum_R / self.samples


@dataclass(frozen=True, slots=True, eq=False)
class StepMeasurements:
    """Measurements of a step before the policy acts."""

    train: TrainMeasurements
    control: RowMeasurements
    """On `val_control`: members and coalitions."""
    score: RowMeasurements
    """On `val_score`: members."""
    finite_E: Bools
    """Members with finite weights and buffers."""
    activation_grad_ES: Doubles | None = None
    """Gradient norm at each slot's activation; None if not measured."""


def transfer_tensors(
    train: TrainTotals, control: RowTotals, score: RowTotals, finite_E: Tensor
) -> dict[str, Tensor]:
    """Return the device tensors of a step's transfer, by name."""
    own = {f"train/{f.name}": getattr(train, f.name) for f in fields(train)}
    parts = {name: value for name, value in own.items() if isinstance(value, Tensor)}
    return (
        parts
        | _row_tensors(control, "control")
        | _row_tensors(score, "score")
        | {"finite_E": finite_E}
    )


def fetch_step(
    train: TrainTotals,
    control: RowTotals,
    score: RowTotals,
    finite_E: Tensor,
    activation_grad_ES: Tensor | None = None,
) -> StepMeasurements:
    """Copy the totals of a step to the host in one transfer."""
    parts = transfer_tensors(train, control, score, finite_E)
    if activation_grad_ES is not None:
        parts["activation_grad_ES"] = activation_grad_ES
    host = fetch(parts)
    batches_E = np.where(train.batches_E > 0, train.batches_E, np.nan)
    batches_E1 = batches_E[:, None]
    return StepMeasurements(
        train=TrainMeasurements(
            loss_E=host["train/loss_E"] / batches_E,
            accuracy_E=host["train/correct_E"] / (batches_E * train.predictions),
            shadow_loss_ES=host["train/shadow_loss_ES"] / batches_E1,
            host_grad_norm_E=host["train/host_grad_norm_E"] / batches_E,
            grad_norm_ES=host["train/grad_norm_ES"] / batches_E1,
            batches_E=train.batches_E.copy(),
        ),
        control=_rows(host, "control", control.samples),
        score=_rows(host, "score", score.samples),
        finite_E=host["finite_E"] > 0,
        activation_grad_ES=host.get("activation_grad_ES"),
    )


def fetch_rows(*totals: RowTotals) -> tuple[RowMeasurements, ...]:
    """Copy validation totals to the host in one transfer."""
    parts: dict[str, Tensor] = {}
    for index, rows in enumerate(totals):
        parts |= _row_tensors(rows, str(index))
    host = fetch(parts)
    return tuple(_rows(host, str(index), rows.samples) for index, rows in enumerate(totals))


def _row_tensors(totals: RowTotals, prefix: str) -> dict[str, Tensor]:
    tensors = {f.name: getattr(totals, f.name) for f in fields(totals) if f.name != "samples"}
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def _rows(host: Mapping[str, Doubles], prefix: str, samples: int) -> RowMeasurements:
    return RowMeasurements(
        loss_sum_R=host[f"{prefix}/loss_R"],
        merit_sum_R=host[f"{prefix}/merit_R"],
        gain_sum_R=host[f"{prefix}/gain_R"],
        gain_square_sum_R=host[f"{prefix}/gain_square_R"],
        samples=samples,
    )
