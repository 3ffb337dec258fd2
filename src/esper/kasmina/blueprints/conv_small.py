"""conv_small: one 1x1 convolution, linear."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.layers.layers import Conv2d, LayerScale
from esper.kasmina.ops import fused
from esper.kasmina.ops.block_parameters import ConvParameters, StepParameters
from esper.kasmina.ops.convolution import conv2d


@blueprint("conv_small", topologies=("cnn",))
class ConvSmall(nn.Module):
    """1x1 convolution, scale: linear without a bias, so it can be merged into what comes next."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = Conv2d(width, width, 1)
        self.scale = LayerScale(width, space=2)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, Tensor) and fused.half_type(x) is not None:  # a tracer must see modules
            weight = self.conv.weight * self.scale.gamma[..., None]
            return conv2d(x, weight, None, self.conv.padding, 1, 1)
        out: Tensor = self.scale(self.conv(x))
        return out

    def seed_steps(self, state: Mapping[str, Tensor]) -> list[StepParameters]:
        """Return the parameters of its step, for rows with this state."""
        return [ConvParameters(state["conv.weight"] * state["scale.gamma"][..., None])]
