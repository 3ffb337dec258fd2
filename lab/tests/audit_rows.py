"""Made-up records of an audit, without torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from esper.leyline.context import PLANNED
from esper.leyline.prices import ScoreConstants
from esper_lab.audit.records import AuditInfo
from esper_lab.audit.rows import ContextRows, DrawnContext


def made_up_info(**changes: Any) -> AuditInfo:
    """An audit of 3 contexts, 2 hosts, 3 topologies, 2 slots and 4 steps."""
    info = AuditInfo(
        task="made_up",
        seed=1,
        contexts=3,
        hosts=2,
        spec=PLANNED,
        slots=("a", "b"),
        blueprints=("norm",),
        topologies=(("", ""), ("norm", ""), ("norm", "norm")),
        host_params=10,
        host_macs=100,
        params=(10, 12, 14),
        macs=(100, 110, 120),
        cost=(1.0, 1.5, 2.0),
        classes=10,
        samples=50,
        steps=4,
        constants=ScoreConstants(),
        device="cpu",
        versions={"esper": "0"},
        grown=(2,),
        settings={"batch_size": "4"},
    )
    return replace(info, **changes)


def made_up_rows(context: int, topologies: tuple[int, ...] = (0, 1, 2)) -> ContextRows:
    """Random measurements that suit `made_up_info`."""
    generator = np.random.default_rng(context)
    grid = (2, len(topologies))

    def values(*shape: int) -> np.ndarray:
        return generator.random((*grid, *shape), dtype=np.float32)

    train_loss = values(5)
    train_loss[..., 0] = np.nan
    return ContextRows(
        DrawnContext(context, 2.5, 7, 40, 1.25, 0.5, True, 0.125),
        np.array(topologies, dtype=np.int64),
        values(5),
        values(5),
        values(5),
        train_loss,
        values(5),
        values(),
        values(2),
        values(2),
        generator.integers(3, size=grid),
    )
