"""depthwise: depthwise-separable convolution."""

from __future__ import annotations

from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.layers import ChannelNorm, Conv2d, LayerScale, scaled_norm


@blueprint("depthwise", topologies=("cnn",))
class Depthwise(nn.Module):
    """3x3 convolution of each channel alone, 1x1 convolution, norm, scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = Conv2d(width, width, 3, groups=width)
        self.pointwise = Conv2d(width, width, 1)
        self.norm = ChannelNorm(width)
        self.scale = LayerScale(width, space=2)

    def forward(self, x: Tensor) -> Tensor:
        return scaled_norm(self.norm, self.scale, self.pointwise(self.depthwise(x)))
