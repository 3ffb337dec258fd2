"""MLP host: blocks of linear layer, norm and GELU, then a linear head."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.layers.host_checks import require_least
from esper.kasmina.layers.layers import Linear
from esper.leyline.errors import EsperError
from esper.leyline.slots import InjectionSpec, Topology, slot_id

HEAD_GAIN = 0.5
"""Keeps the initial logits small, so that the first loss is close to ln(classes)."""


class Block(nn.Module):
    """Linear layer, norm, GELU."""

    def __init__(self, in_features: int, width: int) -> None:
        super().__init__()
        self.linear = Linear(in_features, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.norm(self.linear(x)))


class MLPHost(nn.Module):
    """A chain of blocks of one width on vectors `[B, F]`, with a slot after each block."""

    topology: Topology = "mlp"

    def __init__(
        self, in_features: int = 64, num_classes: int = 10, width: int = 32, n_layers: int = 2
    ) -> None:
        super().__init__()
        require_least(
            "MLPHost", in_features=in_features, num_classes=num_classes, n_layers=n_layers
        )
        if width < 2:
            raise EsperError(
                f"MLPHost width={width}: must be 2 or more, a norm over one value is always 0"
            )
        self.width = width
        inputs = (in_features, *[width] * (n_layers - 1))
        self.blocks = nn.ModuleList(Block(size, width) for size in inputs)
        self.head = Linear(width, num_classes, gain=HEAD_GAIN)

    def segments(self) -> Sequence[nn.Module]:
        """block, ..., block, head."""
        return (*self.blocks, self.head)

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        """One slot per block."""
        return tuple(
            InjectionSpec(slot_id(0, col), self.width, col, "after_block")
            for col in range(len(self.blocks))
        )

    def forward(self, x: Tensor) -> Tensor:
        for segment in self.segments():
            x = segment(x)
        return x
