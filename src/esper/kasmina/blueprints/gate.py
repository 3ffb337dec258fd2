"""gate: a gated linear unit."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.layers.layers import LayerScale, Linear


@blueprint("gate", topologies=("mlp",))
class GatedLinear(nn.Module):
    """One linear map times the sigmoid of another, scaled per channel (initially 0)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.value = Linear(width, width)
        self.gate = Linear(width, width)
        self.scale = LayerScale(width, initial=0.0)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.scale(self.value(x) * torch.sigmoid(self.gate(x)))
        return out
