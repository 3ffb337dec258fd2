"""lora, lora_large: low-rank linear maps."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.layers.layers import Linear

RANK = 4
LARGE_RANK = 16


@blueprint("lora", topologies=("transformer",), min_width=RANK)
class LoRA(nn.Module):
    """Linear map to 4 channels and back, no bias; the up projection is initially 0."""

    rank: ClassVar[int] = RANK

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = Linear(width, self.rank, bias=False)
        self.up = Linear(self.rank, width, bias=False, gain=0.0)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.up(self.down(x))
        return out


@blueprint("lora_large", topologies=("transformer",), min_width=LARGE_RANK)
class LoRALarge(LoRA):
    """Linear map to 16 channels and back, no bias; the up projection is initially 0."""

    rank = LARGE_RANK
