"""Work on one batch: train all members, or validate rows, and accumulate totals.

Totals are device tensors updated in place; nothing here synchronises. Non-finite losses and
gradients stay non-finite in the sums.

Shape letters: E members, R rows, S slots, B batch, K classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from esper.device.graphs import GraphCache
from esper.kasmina.population import Population
from esper.kasmina.rows.rows import RowPlan, RowTable
from esper.kasmina.training.scaling import MemberScaler
from esper.kasmina.training.training import TrainBatch
from esper.leyline.arrays import Bools, Ints
from esper.tasks.objectives import Merit


def classification_merit(logits_RBK: Tensor, target_RB: Tensor) -> Tensor:
    """1 for a correct prediction, else 0."""
    return (logits_RBK.argmax(dim=-1) == target_RB).to(torch.float32)


def language_merit(logits_RBTK: Tensor, target_RBT: Tensor) -> Tensor:
    """1 - loss / ln(vocab) per sequence: 0 for a uniform prediction, 1 for a perfect one."""
    losses = F.cross_entropy(
        logits_RBTK.flatten(0, -2).float(), target_RBT.flatten(), reduction="none"
    )
    loss_RB = losses.view(*target_RBT.shape[:2], -1).mean(dim=-1)
    return 1.0 - loss_RB / math.log(logits_RBTK.shape[-1])


@dataclass(slots=True)
class TrainTotals:
    """Sums over the train batches of a step."""

    loss_E: Tensor
    """Sum over batches."""
    correct_E: Tensor
    shadow_loss_ES: Tensor
    """Sum over batches; NaN where no seed is in TRAINING."""
    host_grad_norm_E: Tensor
    """Sum over batches, before clipping."""
    grad_norm_ES: Tensor
    """Sum over batches, before clipping; NaN where no seed trains."""
    batches_E: Ints
    """Batches each member trained on."""
    predictions: int = 0
    """Predictions of a member per batch."""

    @classmethod
    def zeros(cls, members: int, slots: int, device: torch.device) -> TrainTotals:
        """Return zeroed totals."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        each, pair = (members,), (members, slots)
        sums = zeros(*each), zeros(*each), zeros(*pair), zeros(*each), zeros(*pair)
        return cls(*sums, batches_E=np.zeros(members, dtype=np.int64))

    def zero_(self) -> None:
        """Zero all totals, in place."""
        _zero(self)
        self.batches_E.fill(0)
        self.predictions = 0


@dataclass(slots=True)
class RowTotals:
    """Sums over the validation batches of a step, per row."""

    loss_R: Tensor
    """Sum over samples."""
    merit_R: Tensor
    """Sum over samples; correct predictions for classification."""
    gain_R: Tensor
    """Sum over samples of the merit of the row's member with all seeds, minus the row's."""
    gain_square_R: Tensor
    """Sum over samples of the squared difference."""
    samples: int = 0

    @classmethod
    def zeros(cls, rows: int, device: torch.device) -> RowTotals:
        """Return zeroed totals."""

        def zeros() -> Tensor:
            return torch.zeros(rows, dtype=torch.float64, device=device)

        return cls(zeros(), zeros(), zeros(), zeros())

    def take(self, index_N: Tensor) -> RowTotals:
        """Copy the totals of the given rows."""
        return RowTotals(
            loss_R=self.loss_R.index_select(0, index_N),
            merit_R=self.merit_R.index_select(0, index_N),
            gain_R=self.gain_R.index_select(0, index_N),
            gain_square_R=self.gain_square_R.index_select(0, index_N),
            samples=self.samples,
        )

    def zero_(self) -> None:
        """Zero all totals, in place."""
        _zero(self)
        self.samples = 0


def _zero(totals: TrainTotals | RowTotals) -> None:
    values = (getattr(totals, field.name) for field in fields(totals))
    torch._foreach_zero_([value for value in values if isinstance(value, Tensor)])  # one launch


def process_train_batch(
    population: Population,
    x_EB: Tensor,
    target_EB: Tensor,
    totals: TrainTotals,
    scaler: MemberScaler | None = None,
    graphs: GraphCache | None = None,
    active_E: Bools | None = None,
) -> None:
    """Train members on their batches; `scaler`: for fp16, `graphs`: to replay CUDA graphs.

    `active_E`: host copy of the mask given to `population.set_active`; None: all members.
    """
    if graphs is None or not graphs.on:
        _train(population, population.train_plan(), x_EB, target_EB, totals, scaler)
    else:
        plan = population.train_plan(padded=True)
        x, target = graphs.static_input("x", x_EB), graphs.static_input("target", target_EB)
        key = ("train", plan.buffers, x.data_ptr(), x.shape, target.data_ptr(), target.shape)
        graphs.run(
            (*key, active_E is not None),
            partial(_train, population, plan, x, target, totals, scaler),
        )
    totals.batches_E += 1 if active_E is None else active_E
    totals.predictions = target_EB[0].numel()


def _train(
    population: Population,
    plan: RowPlan,
    x_EB: Tensor,
    target_EB: Tensor,
    totals: TrainTotals,
    scaler: MemberScaler | None,
) -> None:
    """Device work only, so that it can be captured in a CUDA graph."""
    batch = population.train_rows(plan, x_EB, target_EB, scaler)
    active_E = population.trainer.active_E
    if active_E is not None:
        batch = _only(batch, active_E)
    totals.loss_E += batch.loss_E
    totals.correct_E += batch.correct_E
    totals.shadow_loss_ES += batch.shadow_loss_ES
    collect_gradient_telemetry_for_batch(batch, totals)


def _only(batch: TrainBatch, active_E: Tensor) -> TrainBatch:
    """Zero the results of inactive members, whatever they are; NaN stays where nothing trains."""
    active_E1 = active_E[:, None]
    return TrainBatch(
        loss_E=torch.where(active_E, batch.loss_E, 0.0),
        correct_E=torch.where(active_E, batch.correct_E, 0),
        shadow_loss_ES=torch.where(active_E1, batch.shadow_loss_ES, 0.0),
        host_grad_norm_E=torch.where(active_E, batch.host_grad_norm_E, 0.0),
        grad_norm_ES=torch.where(active_E1, batch.grad_norm_ES, 0.0),
    )


def collect_gradient_telemetry_for_batch(batch: TrainBatch, totals: TrainTotals) -> None:
    """Add the gradient norms of a batch to the totals."""
    totals.host_grad_norm_E += batch.host_grad_norm_E
    totals.grad_norm_ES += batch.grad_norm_ES


def process_val_batch(
    population: Population,
    x: Tensor,
    target: Tensor,
    merit: Merit,
    totals: RowTotals,
    plan: RowPlan | None = None,
) -> None:
    """Validate every member on a shared batch; row e of the totals is member e.

    `plan`: the population's `member_plan`, if already computed; rows from E on are padding.
    """
    with torch.no_grad():
        logits = population.forward(x, plan)
        _add_rows(population, logits, target, merit, totals)


def process_fused_val_batch(
    population: Population,
    x: Tensor,
    target: Tensor,
    merit: Merit,
    rows: RowTable | RowPlan,
    totals: RowTotals,
) -> None:
    """Validate members (the first E rows) and coalitions in one pass.

    The gain of each coalition is the paired difference per sample to its member.
    """
    with torch.no_grad():
        plan = population.plan_rows(rows) if isinstance(rows, RowTable) else rows
        logits = population.forward(x, plan)
        merit_RB = _add_rows(population, logits, target, merit, totals)
        if plan.member_R is None:  # no coalitions
            return
        gain_RB = (merit_RB.index_select(0, plan.member_R) - merit_RB).to(torch.float64)
        totals.gain_R += gain_RB.sum(dim=1)
        totals.gain_square_R += gain_RB.square().sum(dim=1)


def _add_rows(
    population: Population, logits: Tensor, target: Tensor, merit: Merit, totals: RowTotals
) -> Tensor:
    """Add loss and merit of a batch to the totals; returns the merit `[R, B]`."""
    rows, batch = logits.shape[:2]
    target_R = target.expand(rows, *target.shape[1:])
    merit_RB = merit(logits, target_R)
    totals.loss_R += population.loss(logits, target_R) * batch
    totals.merit_R += merit_RB.sum(dim=1)
    totals.samples += batch
    return merit_RB
