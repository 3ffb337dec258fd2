"""conv_dilated (signal): a convolution over points that lie apart, then one over neighbours."""

from __future__ import annotations

from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.layers.layers import ChannelNorm, Conv1d, LayerScale, norm_relu, scaled_norm

DILATION = 4
"""Distance of the points that are combined first."""


@blueprint("conv_dilated", topologies=("signal",))
class ConvDilated(nn.Module):
    """Convolution over 3 points 4 apart, norm, ReLU, convolution over 3 points, norm, scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = Conv1d(width, width, 3, dilation=DILATION)
        self.norm1 = ChannelNorm(width)
        self.conv2 = Conv1d(width, width, 3)
        self.norm2 = ChannelNorm(width)
        self.scale = LayerScale(width, space=1)

    def forward(self, x: Tensor) -> Tensor:
        h = norm_relu(self.norm1, self.conv1(x))
        return scaled_norm(self.norm2, self.scale, self.conv2(h))
