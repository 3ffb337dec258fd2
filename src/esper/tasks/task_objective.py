"""The objective of a task that names its own loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from esper.leyline.errors import EsperError
from esper.tasks.objectives import Objective, make_objective

if TYPE_CHECKING:
    from esper.tasks.spec import TaskData, TaskSpec


def make_task_objective(spec: TaskSpec, data: TaskData) -> Objective:
    """Return the objective for the data of a task; raises if they do not fit."""
    targets = torch.from_numpy(data.train.labels)
    shape = spec.output_shape(tuple(targets.shape[1:]))
    try:
        assert spec.loss is not None
        objective = make_objective(spec.loss, spec.metric, targets=targets, output_shape=shape)
        for name in ("val_control", "val_score", "test"):
            objective.check_targets(torch.from_numpy(getattr(data, name).labels), name)
    except EsperError as error:
        raise EsperError(f"task {spec.name}: {error}") from error
    return objective
