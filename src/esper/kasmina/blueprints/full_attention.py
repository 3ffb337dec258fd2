"""full_attention (transformer): self-attention over all positions, for hosts that allow it."""

from __future__ import annotations

from torch import Tensor, nn

from esper.kasmina.blueprints.causal_attention import heads_of
from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.layers.sequence import ZERO, FullAttention


@blueprint("full_attention", topologies=("transformer",), min_width=2, reads_ahead=True)
class FullSelfAttention(nn.Module):
    """Norm, self-attention over all positions; the output projection is initially 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = FullAttention(width, heads_of(width), last_draw=ZERO)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(self.norm(x))
        return out
