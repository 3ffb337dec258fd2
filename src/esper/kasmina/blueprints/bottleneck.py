"""bottleneck: a 3x3 convolution on few channels."""

from __future__ import annotations

from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.layers.layers import (
    ChannelNorm,
    Conv2d,
    LayerScale,
    conv_norm_relu,
    norm_relu,
    scaled_norm,
)

SQUEEZE = 4
"""Hidden channels are a quarter of the width."""
LEAST_HIDDEN = 8
"""Minimum number of hidden channels, for narrow slots."""


@blueprint("bottleneck", topologies=("cnn",))
class Bottleneck(nn.Module):
    """1x1 convolution to few channels, 3x3 convolution there, 1x1 back, each with a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = max(LEAST_HIDDEN, width // SQUEEZE)
        self.down = Conv2d(width, hidden, 1)
        self.norm1 = ChannelNorm(hidden)
        self.conv = Conv2d(hidden, hidden, 3)
        self.norm2 = ChannelNorm(hidden)
        self.up = Conv2d(hidden, width, 1)
        self.norm3 = ChannelNorm(width)
        self.scale = LayerScale(width, space=2)

    def forward(self, x: Tensor) -> Tensor:
        h = norm_relu(self.norm1, self.down(x))
        h = conv_norm_relu(self.conv, self.norm2, h)
        return scaled_norm(self.norm3, self.scale, self.up(h))
