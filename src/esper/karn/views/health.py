"""Health of the learner: metrics of every PPO update, and what was found unusual."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from esper.karn.views.damage import reader
from esper.karn.views.documents import Entries, entries, numbers, real
from esper.karn.views.rounds import history_lines
from esper.karn.views.tables import EventTables, Rounds
from esper.leyline.payloads import PPOUpdateMetrics
from esper.leyline.telemetry import TelemetryEventType


@dataclass(frozen=True, slots=True)
class PPOPoint(PPOUpdateMetrics):
    """One update; NaN: not measured."""

    round: int


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something unusual that was found after an update."""

    round: int
    kind: str
    value: float
    threshold: float
    detail: str
    """One line."""
    time: float


@reader
def read_ppo(run: Path, after: int = -1) -> tuple[PPOPoint, ...]:
    """Updates of a training run, or those after a round; empty if nothing learns."""
    wanted = Rounds(first=after + 1)
    found: dict[int, Entries] = {
        row["round"]: row["metrics"]
        for row in EventTables.of(run).rows(TelemetryEventType.PPO_UPDATED, ("metrics",), wanted)
    }
    for at, line in history_lines(run, after, set(found)):
        found[at] = entries(line, "metrics")
    return tuple(_point(at, found[at]) for at in sorted(found))


def _point(at: int, metrics: Entries) -> PPOPoint:
    values: dict[str, Any] = {f.name: real(metrics, f.name) for f in fields(PPOUpdateMetrics)}
    values["head_entropy"] = tuple(numbers(metrics, "head_entropy"))
    values["epochs_run"] = int(values["epochs_run"])
    values["early_stopped"] = metrics.get("early_stopped") is True
    return PPOPoint(**values, round=at)


@reader
def read_anomalies(run: Path, after: int = -1) -> tuple[Anomaly, ...]:
    """Anomalies of a training run in order, or those after a round."""
    kind, wanted = TelemetryEventType.ANOMALY_DETECTED, Rounds(first=after + 1)
    return tuple(
        Anomaly(
            round=-1 if row["round"] is None else row["round"],
            kind=row["kind"],
            value=row["value"],
            threshold=row["threshold"],
            detail=row["detail"],
            time=row["wall_time"],
        )
        for row in EventTables.of(run).rows(kind, (), wanted)
    )
