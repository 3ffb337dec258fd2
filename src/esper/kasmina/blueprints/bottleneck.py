"""bottleneck: a convolution of side 3 on few channels."""

from __future__ import annotations

from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.layers.layers import (
    CONVOLUTIONS,
    ChannelNorm,
    LayerScale,
    conv_norm_relu,
    norm_relu,
    scaled_norm,
)

SQUEEZE = 4
"""Hidden channels are a quarter of the width."""
MIN_HIDDEN = 8
"""Minimum number of hidden channels, for narrow slots."""


@blueprint("bottleneck", topologies=("cnn", "signal"), spatial=True)
class Bottleneck(nn.Module):
    """To few channels, convolution of side 3 there, and back, each with a norm."""

    def __init__(self, width: int, space: int) -> None:
        super().__init__()
        conv = CONVOLUTIONS[space]
        hidden = max(MIN_HIDDEN, width // SQUEEZE)
        self.down = conv(width, hidden, 1)
        self.norm1 = ChannelNorm(hidden)
        self.conv = conv(hidden, hidden, 3)
        self.norm2 = ChannelNorm(hidden)
        self.up = conv(hidden, width, 1)
        self.norm3 = ChannelNorm(width)
        self.scale = LayerScale(width, space)

    def forward(self, x: Tensor) -> Tensor:
        h = norm_relu(self.norm1, self.down(x))
        h = conv_norm_relu(self.conv, self.norm2, h)
        return scaled_norm(self.norm3, self.scale, self.up(h))
