"""norm (cnn, signal): group norm of the activation, the cheapest seed."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.layers.layers import ChannelNorm, LayerScale, scaled_norm
from esper.kasmina.ops.block_parameters import StepParameters, scaled_norm_step


@blueprint("norm", topologies=("cnn", "signal"), spatial=True)
class Norm(nn.Module):
    """The normalised activation, scaled per channel."""

    def __init__(self, width: int, space: int) -> None:
        super().__init__()
        self.norm = ChannelNorm(width)
        self.scale = LayerScale(width, space)

    def forward(self, x: Tensor) -> Tensor:
        return scaled_norm(self.norm, self.scale, x)

    def seed_steps(self, state: Mapping[str, Tensor]) -> list[StepParameters]:
        """Return the parameters of its steps, for rows with this state."""
        return [scaled_norm_step(state, "norm", "scale", self.norm.groups)]
