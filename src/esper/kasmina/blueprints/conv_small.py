"""conv_small: one convolution of side 1, linear."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.layers.layers import CONVOLUTIONS, LayerScale
from esper.kasmina.ops import fused
from esper.kasmina.ops.block_parameters import ConvParameters, StepParameters
from esper.kasmina.ops.convolution import conv2d


@blueprint("conv_small", topologies=("cnn", "signal"), spatial=True)
class ConvSmall(nn.Module):
    """Convolution of side 1, scale: linear without a bias, so it can be merged."""

    def __init__(self, width: int, space: int) -> None:
        super().__init__()
        conv = CONVOLUTIONS[space]
        self.conv = conv(width, width, 1)
        self.scale = LayerScale(width, space)
        self.images = space == 2

    def forward(self, x: Tensor) -> Tensor:
        # A tracer must see modules.
        if self.images and isinstance(x, Tensor) and fused.half_type(x) is not None:
            weight = self.conv.weight * self.scale.gamma[..., None]
            return conv2d(x, weight, None, self.conv.padding, 1, 1)
        out: Tensor = self.scale(self.conv(x))
        return out

    def seed_steps(self, state: Mapping[str, Tensor]) -> list[StepParameters]:
        """Return the parameters of its step, for rows with this state."""
        return [ConvParameters(state["conv.weight"] * state["scale.gamma"][..., None])]
