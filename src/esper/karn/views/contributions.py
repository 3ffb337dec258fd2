"""What seeds contributed to accuracy, as counterfactual evaluations measured it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from esper.karn.views.damage import reader
from esper.karn.views.seeds import newest_seed_round, step_of
from esper.karn.views.setup import NO_SETUP, setup_of
from esper.karn.views.tables import EventTables, Rounds
from esper.leyline.statistics import Estimate
from esper.leyline.telemetry import TelemetryEventType


@dataclass(frozen=True, slots=True)
class Contribution:
    """One measurement of one seed, in accuracy (0..1)."""

    round: int
    step: int
    member: int
    slot: str
    blueprint: str
    contribution: float
    """Leave-one-out."""
    se: float
    """Standard error, paired over images."""
    shapley: float


_COLUMNS: Final = (
    "member_N",
    "slot_N",
    "blueprint_N",
    "contribution_N",
    "contribution_se_N",
    "shapley_N",
)


@reader
def read_contributions(
    run: Path, first_round: int | None = None, last_round: int | None = None
) -> tuple[Contribution, ...]:
    """Measurements of a training run in order; by default of its newest round."""
    tables = EventTables.of(run)
    if first_round is None and last_round is None:
        first_round = last_round = newest_seed_round(tables)
    setup = setup_of(tables) or NO_SETUP
    kind = TelemetryEventType.COUNTERFACTUALS_MEASURED
    return tuple(
        Contribution(
            round=row["round"],
            step=step_of(row),
            member=row["member_N"],
            slot=setup.slot(row["slot_N"]),
            blueprint=setup.blueprint(row["blueprint_N"]),
            contribution=row["contribution_N"],
            se=row["contribution_se_N"],
            shapley=row["shapley_N"],
        )
        for row in tables.rows(kind, _COLUMNS, Rounds(first_round, last_round))
    )


def contribution_by_step(measured: Sequence[Contribution]) -> tuple[tuple[int, Estimate], ...]:
    """(step, mean over seeds) with the ends of their middle half."""
    by_step: dict[int, list[float]] = {}
    for one in measured:
        if math.isfinite(one.contribution):
            by_step.setdefault(one.step, []).append(one.contribution)
    found = []
    for step, values in sorted(by_step.items()):
        values.sort()
        quarter = len(values) // 4
        mean = math.fsum(values) / len(values)
        found.append((step, Estimate(mean, values[quarter], values[-1 - quarter])))
    return tuple(found)
