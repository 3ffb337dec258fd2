"""Aggregates minibatch metrics to those of one update, with one reducer per key."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any, Final

from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.payloads import PPOUpdateMetrics

Figure = float | Sequence[float]
Rows = Sequence[Mapping[str, Figure]]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _mean_of_known(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return _mean(known) if known else math.nan


def _last(values: Sequence[float]) -> float:
    return values[-1]


REDUCERS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = MappingProxyType(
    {
        "policy_loss": _mean,
        "value_loss": _mean,
        "entropy": _mean,
        "head_entropy": _mean_of_known,  # head by head
        "approx_kl": max,  # compared with the KL limit
        "clip_fraction": _mean,
        "ratio_mean": _mean,
        "ratio_min": min,
        "ratio_max": max,
        "explained_variance": _last,
        "value_mean": _last,
        "value_std": _last,
        "return_mean": _last,
        "return_std": _last,
        "advantage_mean": _last,
        "advantage_std": _last,
        "grad_norm": _mean_of_known,  # NaN where the KL limit skipped the step
        "learning_rate": _last,
        "entropy_coef": _last,
        "exploration": _last,
        "epochs_run": sum,
        "early_stopped": any,
    }
)
"""One per field of `PPOUpdateMetrics`."""
_WHOLE: Final = {f.name: f.type for f in fields(PPOUpdateMetrics) if f.type in ("int", "bool")}


def aggregate_ppo_metrics(update_metrics: Rows) -> PPOUpdateMetrics:
    """Reduce metric rows (of minibatches and passes) to the metrics of an update.

    Raises on a key without a reducer, and on a metric that no row holds.
    """
    gathered: dict[str, list[Figure]] = {}
    for row in update_metrics:
        for key, figure in row.items():
            if key not in REDUCERS:
                raise unknown_name("metric", key, REDUCERS, "of a PPO update")
            gathered.setdefault(key, []).append(figure)
    missing = [key for key in REDUCERS if key not in gathered]
    if missing:
        raise EsperError(f"figures of a PPO update: no row holds {', '.join(missing)}")
    return PPOUpdateMetrics(
        **{key: _reduced(key, figures) for key, figures in gathered.items()}  # type: ignore[arg-type]
    )


def _reduced(key: str, figures: list[Any]) -> float | tuple[float, ...]:
    if key == "head_entropy":
        return tuple(map(REDUCERS[key], zip(*figures, strict=True)))
    value = REDUCERS[key](figures)
    kind = _WHOLE.get(key)
    return int(value) if kind == "int" else bool(value) if kind == "bool" else float(value)
