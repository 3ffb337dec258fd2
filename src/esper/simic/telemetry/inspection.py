"""What did an update leave in the network? Looked at as closely as the level of recording asks.

It reads and changes nothing; at NORMAL it waits for one number, at DEBUG for two small copies,
after the update and never in the step.
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
    """What was found; nothing where nothing was looked for."""

    layers: tuple[LayerGradientStats, ...] = ()
    """The gradients of the last step, layer by layer, as the optimiser clipped them."""
    non_finite: Mapping[str, int] = field(default_factory=dict)
    """Weights and gradients that are not finite, by name, and how many numbers of each."""


def inspect_network(network: nn.Module, level: TelemetryLevel) -> NetworkHealth:
    """Layer by layer at DEBUG, or where the gradient as a whole is not finite."""
    if level < TelemetryLevel.NORMAL:
        return NetworkHealth()
    sound = math.isfinite(compute_grad_norm_surrogate(network))
    if sound and level < TelemetryLevel.DEBUG:
        return NetworkHealth()
    return NetworkHealth(collect_per_layer_gradients(network), check_numerical_stability(network))
