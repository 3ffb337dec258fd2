"""depthwise: depthwise-separable convolution."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.layers.layers import CONVOLUTIONS, ChannelNorm, LayerScale, scaled_norm
from esper.kasmina.ops.block_parameters import ConvParameters, StepParameters, scaled_norm_step


@blueprint("depthwise", topologies=("cnn", "signal"), spatial=True)
class Depthwise(nn.Module):
    """Depthwise convolution of side 3, convolution of side 1, norm, scale."""

    def __init__(self, width: int, space: int) -> None:
        super().__init__()
        conv = CONVOLUTIONS[space]
        self.depthwise = conv(width, width, 3, groups=width)
        self.pointwise = conv(width, width, 1)
        self.norm = ChannelNorm(width)
        self.scale = LayerScale(width, space)

    def forward(self, x: Tensor) -> Tensor:
        return scaled_norm(self.norm, self.scale, self.pointwise(self.depthwise(x)))

    def seed_steps(self, state: Mapping[str, Tensor]) -> list[StepParameters]:
        """Return the parameters of its steps, for rows with this state."""
        return [
            ConvParameters(state["depthwise.weight"]),
            ConvParameters(state["pointwise.weight"]),
            scaled_norm_step(state, "norm", "scale", self.norm.groups),
        ]
