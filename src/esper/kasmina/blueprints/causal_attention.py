"""attention (transformer): causal self-attention."""

from __future__ import annotations

import math

from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.layers.sequence import ZERO, CausalAttention

HEAD_WIDTH = 16
"""Channels per head, if they divide the width."""


def heads_of(width: int) -> int:
    """Number of heads of a seed.

    >>> heads_of(64), heads_of(24), heads_of(8)
    (4, 2, 1)
    """
    return math.gcd(width, math.ceil(width / HEAD_WIDTH))


@blueprint("attention", topologies=("transformer",), min_width=2)
class SelfAttention(nn.Module):
    """Norm, causal self-attention; the output projection is initially 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads_of(width), last_draw=ZERO)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(self.norm(x))
        return out
