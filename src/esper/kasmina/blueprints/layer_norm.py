"""norm (transformer, mlp): layer norm of the activation."""

from __future__ import annotations

from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.layers.layers import LayerScale


@blueprint("norm", topologies=("transformer", "mlp"), min_width=2)
class VectorNorm(nn.Module):
    """The activation normalised over its channels, scaled per channel (initially 0)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = LayerScale(width, initial=0.0)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.scale(self.norm(x))
        return out
