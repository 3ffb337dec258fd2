"""conv_light: one 3x3 convolution."""

from __future__ import annotations

from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.layers import ChannelNorm, Conv2d, LayerScale, conv_scaled_norm


@blueprint("conv_light", topologies=("cnn",))
class ConvLight(nn.Module):
    """3x3 convolution, norm, scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = Conv2d(width, width, 3)
        self.norm = ChannelNorm(width)
        self.scale = LayerScale(width, space=2)

    def forward(self, x: Tensor) -> Tensor:
        return conv_scaled_norm(self.conv, self.norm, self.scale, x)
