"""One import for the helpers around seeds, updates and anomalies; each lives in its own room."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper.kasmina.lifecycle import advance_active_seed as advance_active_seed
    from esper.kasmina.lifecycle import resolve_target_slot as resolve_target_slot
    from esper.simic.telemetry.aggregation import aggregate_ppo_metrics as aggregate_ppo_metrics
    from esper.simic.telemetry.anomaly import emit_anomaly_diagnostics as emit_anomaly_diagnostics
    from esper.simic.telemetry.anomaly import (
        handle_telemetry_escalation as handle_telemetry_escalation,
    )
    from esper.simic.training.runner import run_ppo_updates as run_ppo_updates
    from esper.simic.training.schedules import (
        calculate_entropy_anneal_steps as calculate_entropy_anneal_steps,
    )

_HOME = {
    "advance_active_seed": "esper.kasmina.lifecycle",
    "aggregate_ppo_metrics": "esper.simic.telemetry.aggregation",
    "calculate_entropy_anneal_steps": "esper.simic.training.schedules",
    "emit_anomaly_diagnostics": "esper.simic.telemetry.anomaly",
    "handle_telemetry_escalation": "esper.simic.telemetry.anomaly",
    "resolve_target_slot": "esper.kasmina.lifecycle",
    "run_ppo_updates": "esper.simic.training.runner",
}

__all__ = [
    "advance_active_seed",
    "aggregate_ppo_metrics",
    "calculate_entropy_anneal_steps",
    "emit_anomaly_diagnostics",
    "handle_telemetry_escalation",
    "resolve_target_slot",
    "run_ppo_updates",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
