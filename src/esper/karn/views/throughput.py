"""Speed of a training run by round, and where its time went."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, fields
from pathlib import Path

from esper.karn.views.damage import reader
from esper.karn.views.tables import EventTables, Rounds, Row
from esper.leyline.payloads import Throughput
from esper.leyline.telemetry import TelemetryEventType


@dataclass(frozen=True, slots=True, eq=False)
class SpeedPoint(Throughput):
    """Speed of a round. NaN: not measured."""

    round: int
    phases: tuple[tuple[str, float], ...]
    """(phase, seconds) of the round, the update included."""


@reader
def read_throughput(run: Path, after: int = -1) -> tuple[SpeedPoint, ...]:
    """Speed of every round of a training run, or of those after one."""
    tables, wanted = EventTables.of(run), Rounds(first=after + 1)
    speeds = {row["round"]: row for row in tables.rows(TelemetryEventType.THROUGHPUT, (), wanted)}
    phases: dict[int, dict[str, float]] = defaultdict(dict)
    for row in tables.rows(TelemetryEventType.PHASE_PROFILE, ("phases",), wanted):
        for one in row["phases"]:
            phases[row["round"]][one["phase"]] = one["seconds"]
    return tuple(_point(speeds[at], phases[at]) for at in sorted(speeds))


def _point(row: Row, phases: dict[str, float]) -> SpeedPoint:
    values = {f.name: math.nan if row[f.name] is None else row[f.name] for f in fields(Throughput)}
    return SpeedPoint(**values, round=row["round"], phases=tuple(phases.items()))
