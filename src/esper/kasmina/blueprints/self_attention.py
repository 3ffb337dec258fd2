"""attention, full_attention (transformer): self-attention, causal or over all positions."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.layers.sequence import ZERO, CausalAttention, FullAttention

HEAD_WIDTH = 16
"""Channels per head, if they divide the width."""


@blueprint("attention", topologies=("transformer",), min_width=2)
class SelfAttention(nn.Module):
    """Norm, causal self-attention; the output projection is initially 0."""

    kind: ClassVar[type[FullAttention]] = CausalAttention

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        heads = math.gcd(width, math.ceil(width / HEAD_WIDTH))  # 64 -> 4, 24 -> 2, 8 -> 1
        self.attention = self.kind(width, heads, last_draw=ZERO)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(self.norm(x))
        return out


@blueprint("full_attention", topologies=("transformer",), min_width=2, reads_ahead=True)
class FullSelfAttention(SelfAttention):
    """Norm, self-attention over all positions; the output projection is initially 0."""

    kind = FullAttention
