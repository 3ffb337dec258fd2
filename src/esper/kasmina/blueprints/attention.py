"""attention (cnn, signal): squeeze-excite."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.layers.layers import LayerScale, Linear
from esper.kasmina.ops import fused
from esper.kasmina.ops.block_parameters import ExciteParameters, StepParameters

SQUEEZE = 4
"""Hidden channels are a quarter of the width, at least two."""


@blueprint("attention", topologies=("cnn", "signal"), spatial=True, min_width=2)
class SqueezeExcite(nn.Module):
    """Squeeze-excite: the activation times a learnt, input-dependent weight per channel."""

    def __init__(self, width: int, space: int) -> None:
        super().__init__()
        self.axes = tuple(range(-space, 0))
        hidden = max(2, width // SQUEEZE)
        self.squeeze = Linear(width, hidden)
        self.excite = Linear(hidden, width)
        self.scale = LayerScale(width, space)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, Tensor) and fused.norm_fits(x, 1):  # a tracer must see all modules
            means, x = fused.squeeze(x)
            return fused.excite(x, self._weights(means) * self.scale.gamma.flatten())
        weights = self._weights(x.mean(dim=self.axes))
        out: Tensor = self.scale(x * weights[(..., *[None] * len(self.axes))])
        return out

    def seed_steps(self, state: Mapping[str, Tensor]) -> list[StepParameters]:
        """Return the parameters of its step, for rows with this state."""
        squeeze, shift = state["squeeze.weight"], state["squeeze.bias"]
        excite, end = state["excite.weight"], state["excite.bias"]
        gamma = state["scale.gamma"].flatten(1)
        return [ExciteParameters(squeeze, shift, excite, end, gamma)]

    def _weights(self, pooled: Tensor) -> Tensor:
        return torch.tanh(self.excite(F.silu(self.squeeze(pooled))))
