"""Gradient and weight checks of the network after an update, by telemetry level.

Read-only. It synchronises for one number at NORMAL and two small copies at DEBUG, after the update
and never in the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from esper.leyline.payloads import LayerGradientStats
from esper.leyline.telemetry import TelemetryLevel
from esper.simic.telemetry.emitters import compute_grad_norm_surrogate
from esper.simic.telemetry.gradients import check_numerical_stability, collect_per_layer_gradients


@dataclass(frozen=True, slots=True)
class NetworkHealth:
    """Result of `inspect_network`; empty if nothing was inspected."""

    layers: tuple[LayerGradientStats, ...] = ()
    """Per-layer statistics of the last step's clipped gradients."""
    non_finite: Mapping[str, int] = field(default_factory=dict)
    """Number of non-finite values by weight or gradient name."""


def inspect_network(network: nn.Module, level: TelemetryLevel) -> NetworkHealth:
    """Inspect each layer at DEBUG, or if the total gradient norm is not finite."""
    if level < TelemetryLevel.NORMAL:
        return NetworkHealth()
    sound = math.isfinite(compute_grad_norm_surrogate(network))
    if sound and level < TelemetryLevel.DEBUG:
        return NetworkHealth()
    return NetworkHealth(collect_per_layer_gradients(network), check_numerical_stability(network))
