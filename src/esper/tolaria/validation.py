"""Validation of members and seed coalitions on the parts of a task's data.

`val_control` drives growth decisions: members and coalitions of their seeds run in one fused pass.
`val_score` is used for the score: members only. All members see the same samples, so the input
batch is shared.

Shape letters: E members, R rows, S slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from esper.device.graphs import GraphCache
from esper.device.upload import upload
from esper.kasmina.population import Population
from esper.kasmina.rows.rows import PlanBuffers, RowPlan, RowTable
from esper.leyline.arrays import Doubles
from esper.leyline.errors import EsperError
from esper.tasks.context_data import RoundData
from esper.tasks.objectives import Merit, Objective
from esper.tasks.scoring import language_accuracy
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import TaskData, TaskPart
from esper.tolaria.batch_ops import (
    RowTotals,
    classification_merit,
    language_merit,
    process_fused_val_batch,
    process_val_batch,
)
from esper.tolaria.measurements import RowMeasurements


class _ValidationPart:
    """One part of the data on the device, normalised, in batches of at most `batch_size`."""

    def __init__(
        self,
        data: TaskData,
        part: TaskPart,
        device: torch.device,
        batch_size: int,
        limit: int | None = None,
    ) -> None:
        """`limit`: use only the first samples of the part."""
        if batch_size < 1:
            raise EsperError(f"validation batch size {batch_size}: must be 1 or more")
        wanted = slice(limit)
        chosen = TaskPart(part.inputs[wanted], part.labels[wanted])
        # Copies: `overwrite` must not change the task's own arrays.
        self._inputs = torch.from_numpy(np.array(data.normalised(chosen))).to(device)
        self._labels = torch.from_numpy(np.array(chosen.labels)).to(device)
        self._batch_size = batch_size

    def overwrite(self, data: RoundData, name: str) -> None:
        """Replace the samples by those of a round, in place, as captured graphs need."""
        inputs, labels = data.part(name, self._inputs.device, len(self))
        self._inputs.copy_(data.normalised(inputs))
        self._labels.copy_(labels)

    def __len__(self) -> int:
        return len(self._labels)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets `[1, B, ...]`, shared by all members."""
        for start in range(0, len(self), self._batch_size):
            part = slice(start, start + self._batch_size)
            yield self._inputs[None, part], self._labels[None, part]

    @property
    def sample(self) -> Tensor:
        """One input `[1, ...]`, for shape inference."""
        return self._inputs[:1]


class Validator:
    """Runs members and coalitions over the validation parts of a task."""

    def __init__(
        self,
        spec: TaskSpec,
        data: TaskData,
        device: torch.device,
        batch_size: int,
        control_limit: int | None = None,
        objective: Objective | None = None,
    ) -> None:
        """`objective`: the task's own loss and metric; None: accuracy, or that of languages."""
        self.control = _ValidationPart(data, data.val_control, device, batch_size, control_limit)
        self.score = _ValidationPart(data, data.val_score, device, batch_size)
        self.merit: Merit = language_merit if data.kind == "tokens" else classification_merit
        self._vocab = spec.num_classes if data.kind == "tokens" else None
        self._objective = objective
        if objective is not None:
            self.merit, self._vocab = objective.merit, None
        self._data, self._device, self._batch_size = data, device, batch_size
        self._round: RoundData | None = None
        """What the context changes in the data; None: nothing."""
        self.graphs: GraphCache | None = None
        """Cache of captured passes over control and score; None: run eagerly."""
        self._totals: WeakKeyDictionary[PlanBuffers, dict[str, RowTotals]] = WeakKeyDictionary()
        """Output buffers of captured passes. A replay overwrites them, so callers get copies."""

    def replace_data(self, data: RoundData) -> None:
        """Overwrite the validation parts in place, between episodes; `test` when it is used."""
        self._round = data
        self.control.overwrite(data, "val_control")
        self.score.overwrite(data, "val_score")

    def run_control(self, population: Population, table: RowTable | None) -> RowTotals:
        """Validate the rows of the table (None: members only) on `val_control`."""
        return self._run("control", population, self.control, table)

    def run_score(self, population: Population) -> RowTotals:
        """Validate the members on `val_score`."""
        return self._run("score", population, self.score, None)

    def run_test(self, population: Population) -> RowTotals:
        """Validate the members on `test`; for the final report only."""
        part = _ValidationPart(self._data, self._data.test, self._device, self._batch_size)
        if self._round is not None:
            part.overwrite(self._round, "test")
        plan = population.member_plan()
        totals = RowTotals.zeros(plan.table.rows, self._device)
        self._add_part(population, plan, True, part, totals)
        return totals

    def _run(
        self, name: str, population: Population, part: _ValidationPart, table: RowTable | None
    ) -> RowTotals:
        """Run all batches of a part. The whole pass is one CUDA graph: its inputs never change."""
        graphs = self.graphs if self.graphs is not None and self.graphs.on else None
        padded = graphs is not None
        plan = (
            population.member_plan(padded) if table is None else population.plan_rows(table, padded)
        )
        if graphs is None or plan.buffers is None or plan.real_R is None:
            totals = RowTotals.zeros(plan.table.rows, self._device)
            self._add_part(population, plan, table is None, part, totals)
            return totals
        buffers = self._totals.setdefault(plan.buffers, {})
        if name not in buffers:
            buffers[name] = RowTotals.zeros(plan.table.rows, self._device)
        work = partial(self._add_part, population, plan, table is None, part, buffers[name])
        graphs.run((name, plan.buffers), work)
        return buffers[name].take(upload(plan.real_R, self._device))

    def _add_part(
        self,
        population: Population,
        plan: RowPlan,
        members_only: bool,
        part: _ValidationPart,
        totals: RowTotals,
    ) -> None:
        """Queue the device work of a pass, capturable; `members_only`: without coalitions."""
        totals.zero_()
        for x, target in part.batches():
            if members_only:
                process_val_batch(population, x, target, self.merit, totals, plan)
            else:
                process_fused_val_batch(population, x, target, self.merit, plan, totals)

    def accuracy(self, rows: RowMeasurements) -> Doubles:
        """Accuracy of each row in [0, 1], as used by the task's score."""
        if self._vocab is not None:
            return language_accuracy(rows.loss_R, self._vocab)
        return rows.merit_R if self._objective is None else self._objective.score(rows.merit_R)
