"""Accuracy within the episodes of a round: one point per step, over all members."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from esper.karn.views.damage import reader
from esper.karn.views.seeds import newest_seed_round
from esper.karn.views.tables import EventTables, Rounds
from esper.leyline.statistics import Estimate, t_interval
from esper.leyline.telemetry import TelemetryEventType


@dataclass(frozen=True, slots=True)
class StepPoint:
    """One step of a round; NaN: not recorded."""

    round: int
    step: int
    """From 0."""
    accuracy: Estimate
    """Held out; mean over members with its 95 % interval."""
    train_accuracy: float


@reader
def read_steps(run: Path, round_index: int | None = None) -> tuple[StepPoint, ...]:
    """Steps of a round, by default the newest; empty if none is recorded."""
    tables = EventTables.of(run)
    at = newest_seed_round(tables) if round_index is None else round_index
    return _from_events(tables, at) or _from_curve(tables, at)


def _from_events(tables: EventTables, at: int) -> tuple[StepPoint, ...]:
    names = ("val_accuracy_E", "train_accuracy_E")
    steps: dict[int, dict[int, Any]] = {}
    for row in tables.rows(TelemetryEventType.STEP_COMPLETED, names, Rounds(at, at)):
        steps.setdefault(row["step"], {})[row["row"]] = [row[name] for name in names]
    points = []
    for step, members in sorted(steps.items()):
        values_EX = np.array(list(members.values()), dtype=np.float64)
        mean, low, high = t_interval(values_EX)
        accuracy = Estimate(float(mean[0]), float(low[0]), float(high[0]))
        points.append(StepPoint(at, step, accuracy, float(mean[1])))
    return tuple(points)


def _from_curve(tables: EventTables, at: int) -> tuple[StepPoint, ...]:
    """From the curve of a round; that of its last session, if it was run again."""
    rows = {
        row["at_step_T"]: row
        for row in tables.rows(TelemetryEventType.EPISODE_CURVE, (), Rounds(at, at))
    }
    return tuple(
        StepPoint(
            at,
            step,
            Estimate(row["accuracy_T"], row["accuracy_low_T"], row["accuracy_high_T"]),
            row["train_accuracy_T"],
        )
        for step, row in sorted(rows.items())
    )
