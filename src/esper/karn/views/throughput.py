"""Speed of a training run by round, and where its time went."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from esper.karn.views.damage import reader
from esper.karn.views.tables import EventTables, Rounds, Row
from esper.leyline.telemetry import TelemetryEventType


@dataclass(frozen=True, slots=True)
class SpeedPoint:
    """Speed of a round. NaN: not measured."""

    round: int
    member_steps_per_second: float
    episodes_per_second: float
    batches_per_second: float
    samples_per_second: float
    gpu_utilization: float
    """0..1, as the driver reports it."""
    device_share: float
    """Share of the round that the device trained and validated, 0..1."""
    gpu_memory: float
    """Most bytes that tensors took on the GPU so far."""
    rows_per_member: float
    """Rows computed per member and step: main, shadow, counterfactual."""
    step_seconds_p50: float
    step_seconds_p95: float
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
    names = (name for name in SpeedPoint.__dataclass_fields__ if name not in ("round", "phases"))
    return SpeedPoint(
        round=row["round"],
        phases=tuple(phases.items()),
        **{name: math.nan if row[name] is None else row[name] for name in names},
    )
