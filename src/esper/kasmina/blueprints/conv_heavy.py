"""conv_heavy: two 3x3 convolutions."""

from __future__ import annotations

from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.layers import ChannelNorm, Conv2d, LayerScale, norm_relu, scaled_norm


@blueprint("conv_heavy", topologies=("cnn",))
class ConvHeavy(nn.Module):
    """3x3 convolution, norm, ReLU, 3x3 convolution, norm, scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = Conv2d(width, width, 3)
        self.norm1 = ChannelNorm(width)
        self.conv2 = Conv2d(width, width, 3)
        self.norm2 = ChannelNorm(width)
        self.scale = LayerScale(width, space=2)

    def forward(self, x: Tensor) -> Tensor:
        h = norm_relu(self.norm1, self.conv1(x))
        return scaled_norm(self.norm2, self.scale, self.conv2(h))
