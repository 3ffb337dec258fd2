"""attention, of transformers: positions mixed, each from its own past."""

from __future__ import annotations

import math

from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.sequence import ZERO, CausalAttention

HEAD_WIDTH = 16
"""Channels of a head where they divide the width."""


@blueprint("attention", topologies=("transformer",), min_width=2)
class SelfAttention(nn.Module):
    """Norm, causal self-attention; its last map is 0 at birth."""

    def __init__(self, width: int) -> None:
        super().__init__()
        heads = math.gcd(width, math.ceil(width / HEAD_WIDTH))
        self.norm = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads, last_draw=ZERO)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(self.norm(x))
        return out
