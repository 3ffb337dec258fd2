"""conv_light: one convolution of side 3."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.layers.layers import CONVOLUTIONS, ChannelNorm, LayerScale, conv_scaled_norm
from esper.kasmina.ops.block_parameters import StepParameters, scaled_block


@blueprint("conv_light", topologies=("cnn", "signal"), spatial=True)
class ConvLight(nn.Module):
    """Convolution of side 3, norm, scale."""

    def __init__(self, width: int, space: int) -> None:
        super().__init__()
        conv = CONVOLUTIONS[space]
        self.conv = conv(width, width, 3)
        self.norm = ChannelNorm(width)
        self.scale = LayerScale(width, space)

    def forward(self, x: Tensor) -> Tensor:
        return conv_scaled_norm(self.conv, self.norm, self.scale, x)

    def seed_steps(self, state: Mapping[str, Tensor]) -> list[StepParameters]:
        """Return the parameters of its steps, for rows with this state."""
        return [scaled_block(state, "conv", "norm", "scale", self.norm.groups)]
