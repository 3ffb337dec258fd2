"""Health of the learner: metrics of every PPO update, and what was found unusual."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from esper.karn.views.damage import reader
from esper.karn.views.documents import Entries, entries, numbers, real
from esper.karn.views.rounds import history_lines
from esper.karn.views.tables import EventTables, Rounds
from esper.leyline.actions import ActionHead
from esper.leyline.telemetry import TelemetryEventType


@dataclass(frozen=True, slots=True)
class PPOPoint:
    """One update, as `PPOUpdateMetrics`; NaN: not measured."""

    round: int
    policy_loss: float
    value_loss: float
    entropy: float
    head_entropy: tuple[tuple[str, float], ...]
    """(head, entropy over steps that use it)."""
    approx_kl: float
    clip_fraction: float
    ratio_mean: float
    ratio_min: float
    ratio_max: float
    explained_variance: float
    value_mean: float
    value_std: float
    return_mean: float
    return_std: float
    advantage_mean: float
    advantage_std: float
    grad_norm: float
    learning_rate: float
    entropy_coef: float
    exploration: float
    epochs_run: int
    early_stopped: bool


_OTHERS: Final = ("round", "head_entropy", "epochs_run", "early_stopped")
"""Fields that are not read as real numbers."""


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
    heads = zip((head.name for head in ActionHead), numbers(metrics, "head_entropy"), strict=False)
    names = (name for name in PPOPoint.__dataclass_fields__ if name not in _OTHERS)
    values: dict[str, Any] = {name: real(metrics, name) for name in names}
    return PPOPoint(
        round=at,
        head_entropy=tuple(heads),
        epochs_run=int(real(metrics, "epochs_run")),
        early_stopped=metrics.get("early_stopped") is True,
        **values,
    )


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
