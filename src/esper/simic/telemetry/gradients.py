"""Gradient and weight checks of the network after an update, by telemetry level.

Read-only. They synchronise for one number at NORMAL and two small copies at DEBUG, after the update
and never in the step. Shape letters: L layers, F statistics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor, nn

from esper.leyline.payloads import LayerGradientStats
from esper.leyline.telemetry import TelemetryLevel
from esper.simic.telemetry.emitters import compute_grad_norm_surrogate

SMALL: Final = 1e-6
"""Elements below this magnitude count as small."""
LARGE: Final = 10.0
"""Elements above this magnitude count as large."""


def collect_per_layer_gradients(module: nn.Module) -> tuple[LayerGradientStats, ...]:
    """Gradient statistics of every parameter that has a gradient, in the module's order.

    Norm, mean and standard deviation of a non-finite gradient are not finite. Fractions are of all
    elements. The standard deviation is uncorrected (0 for one element).
    """
    layers = {
        name: parameter
        for name, parameter in module.named_parameters()
        if parameter.grad is not None and parameter.numel()
    }
    if not layers:
        return ()
    host_LF = _to_host([_figures(parameter) for parameter in layers.values()]).tolist()
    return tuple(map(_stats, layers, host_LF))


def _stats(layer: str, figures_F: list[float]) -> LayerGradientStats:
    norm, mean, std, param_norm, zero, small, large, nans, infs = figures_F
    return LayerGradientStats(
        layer, norm, mean, std, param_norm, zero, small, large, int(nans), int(infs)
    )


def _figures(parameter: Tensor) -> Tensor:
    """Statistics `[F]` on the device, in the order `_stats` reads them."""
    assert parameter.grad is not None
    grad = parameter.grad.detach().to_dense().to(torch.float64)
    size = grad.abs()
    return torch.stack(
        [
            torch.linalg.vector_norm(grad),
            grad.mean(),
            grad.std(correction=0),
            torch.linalg.vector_norm(parameter.detach(), dtype=torch.float64),
            (size == 0).double().mean(),
            (size < SMALL).double().mean(),
            (size > LARGE).double().mean(),
            grad.isnan().sum().double(),
            grad.isinf().sum().double(),
        ]
    )


def check_numerical_stability(module: nn.Module) -> dict[str, int]:
    """Number of non-finite values by tensor name; empty if all are finite.

    Names are prefixed: `parameter core.weight`, `gradient core.weight`.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters():
        tensors[f"parameter {name}"] = parameter
        if parameter.grad is not None:
            tensors[f"gradient {name}"] = parameter.grad.to_dense()
    if not tensors:
        return {}
    host_L = _to_host([(~tensor.detach().isfinite()).sum() for tensor in tensors.values()])
    counted = zip(tensors, host_L.tolist(), strict=True)
    return {name: count for name, count in counted if count}


def _to_host(figures: list[Tensor]) -> Tensor:
    """Copy all tensors to the host at once."""
    home = figures[0].device
    together = torch.stack([part.to(home, non_blocking=True) for part in figures])
    return together.cpu()  # SYNC: one copy for all layers, after an update; never in the step


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
