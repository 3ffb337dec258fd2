"""attention (transformer): causal self-attention."""

from __future__ import annotations

import math

from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.sequence import ZERO, CausalAttention

HEAD_WIDTH = 16
"""Channels per head, if they divide the width."""


@blueprint("attention", topologies=("transformer",), min_width=2)
class SelfAttention(nn.Module):
    """Norm, causal self-attention; the output projection is initially 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        heads = math.gcd(width, math.ceil(width / HEAD_WIDTH))
        self.norm = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads, last_draw=ZERO)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(self.norm(x))
        return out
