"""twin: a copy of the host's own segment before the slot, with its current weights."""

from __future__ import annotations

from torch import Tensor

from esper.kasmina.blueprints.registry import HostSegment, blueprint
from esper.kasmina.layers.host_checks import axes_after_channels
from esper.kasmina.layers.layers import DrawnModule, LayerScale
from esper.kasmina.layers.segment_copy import copy_segment
from esper.leyline.slots import TOPOLOGIES


@blueprint("twin", topologies=TOPOLOGIES, from_host=True)
class Twin(DrawnModule):
    """A copy of the segment before the slot with its weights, scaled per channel (initially 0).

    The delta is g * seg(x); for a segment with `residual = True`, g * (seg(x) - x), so that g = 1
    is the segment applied once more. A zero scale after the segment, not a zero norm inside it:
    in front of a ReLU that would get no gradient.
    """

    def __init__(self, source: HostSegment) -> None:
        super().__init__()
        width = source.slot.channels
        copied = copy_segment(source.module, source.sample, width)
        self.residual = getattr(source.module, "residual", False) is True  # not a submodule
        self.segment = copied.module
        self.scale = LayerScale(width, axes_after_channels(source.topology), initial=0.0)
        self.inherited = {f"segment.{name}": source.names[name] for name in copied.same}
        """Own tensors -> those of the host they start as."""
        self.draws = {f"segment.{name}": draw for name, draw in copied.draws.items()}
        self.draw_parameters()
        self._writes_input = copied.writes_input

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.segment(x.clone() if self._writes_input else x)
        if self.residual:
            out = out - x
        if isinstance(x, Tensor) and out.dtype != x.dtype:  # norms under autocast
            out = out.to(x.dtype)
        out = self.scale(out)
        return out

    def extra_repr(self) -> str:
        return f"residual={self.residual}"
