"""How do the gradients of the controller look, and is everything in it finite?

For debug level and for post-mortems: it reads, changes nothing, and waits for the device once,
whatever the number of layers. Shape letters: L layers, F figures of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from esper.leyline.payloads import LayerGradientStats

SMALL: Final = 1e-6
"""Elements below this in size are counted as small."""
LARGE: Final = 10.0
"""Elements above this in size are counted as large."""


def collect_per_layer_gradients(module: nn.Module) -> tuple[LayerGradientStats, ...]:
    """The gradient of every parameter tensor that has one, by name, in the module's order.

    A gradient that is not finite makes its own norm, mean and deviation so; shares are of all its
    elements. The deviation is that of the elements themselves (one element: 0).
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
    """`[F]` on the device, as `_stats` reads them."""
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


def check_numerical_stability(
    module: nn.Module, losses: Mapping[str, float | Tensor] | None = None
) -> dict[str, int]:
    """What is not finite, by name, and how many numbers of it; empty where all is sound.

    Names say what they are of: `parameter core.weight`, `gradient core.weight`, `loss policy`.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters():
        tensors[f"parameter {name}"] = parameter
        if parameter.grad is not None:
            tensors[f"gradient {name}"] = parameter.grad.to_dense()
    for name, loss in (losses or {}).items():
        tensors[f"loss {name}"] = torch.as_tensor(loss)
    if not tensors:
        return {}
    host_L = _to_host([(~tensor.detach().isfinite()).sum() for tensor in tensors.values()])
    counted = zip(tensors, host_L.tolist(), strict=True)
    return {name: count for name, count in counted if count}


def _to_host(figures: list[Tensor]) -> Tensor:
    """All figures, wherever they lie, in one copy."""
    home = figures[0].device
    together = torch.stack([part.to(home, non_blocking=True) for part in figures])
    return together.cpu()  # SYNC: one copy for all layers, after an update; never in the step
