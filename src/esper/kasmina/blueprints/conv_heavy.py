"""conv_heavy: two convolutions of side 3."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.layers.layers import (
    CONVOLUTIONS,
    ChannelNorm,
    LayerScale,
    conv_norm_relu,
    conv_scaled_norm,
)
from esper.kasmina.ops.block_parameters import StepParameters, block_with_relu, scaled_block


@blueprint("conv_heavy", topologies=("cnn", "signal"), spatial=True)
class ConvHeavy(nn.Module):
    """Convolution of side 3, norm, ReLU, another one, norm, scale."""

    def __init__(self, width: int, space: int) -> None:
        super().__init__()
        conv = CONVOLUTIONS[space]
        self.conv1 = conv(width, width, 3)
        self.norm1 = ChannelNorm(width)
        self.conv2 = conv(width, width, 3)
        self.norm2 = ChannelNorm(width)
        self.scale = LayerScale(width, space)

    def forward(self, x: Tensor) -> Tensor:
        h = conv_norm_relu(self.conv1, self.norm1, x)
        return conv_scaled_norm(self.conv2, self.norm2, self.scale, h)

    def seed_steps(self, state: Mapping[str, Tensor]) -> list[StepParameters]:
        """Return the parameters of its steps, for rows with this state."""
        return [
            block_with_relu(state, "conv1", "norm1", self.norm1.groups),
            scaled_block(state, "conv2", "norm2", "scale", self.norm2.groups),
        ]
