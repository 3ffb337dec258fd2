"""mlp: feed-forward pair with four times the width inside."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.layers.sequence import ZERO, FeedForward


@blueprint("mlp", topologies=("transformer", "mlp"), min_width=2)
class MLP(nn.Module):
    """Norm, linear map to 4 times the width, GELU, linear map back (initially 0)."""

    ratio: ClassVar[int] = 4

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = FeedForward(width, self.ratio * width, last_draw=ZERO)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.mlp(self.norm(x))
        return out


@blueprint("mlp_small", topologies=("transformer", "mlp"), min_width=2)
class MLPSmall(MLP):
    """Norm, linear map of the same width, GELU, linear map (initially 0)."""

    ratio = 1
