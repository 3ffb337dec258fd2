"""Re-exports the helpers for seeds, updates and anomalies from their modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.leyline.lazy import attach

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
else:
    __getattr__, __dir__, __all__ = attach(__name__)
