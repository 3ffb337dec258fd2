"""Which hosts tasks start from: settings now, the module (and torch) only when one is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from esper.leyline.slots import slot_id

if TYPE_CHECKING:
    from torch import nn

CNN_BLUEPRINTS: Final = (
    "norm", "depthwise", "conv_small", "conv_light", "conv_heavy", "attention",
)  # fmt: skip
"""What image tasks may grow; those that fit."""


@dataclass(frozen=True, slots=True)
class CNNFactory:
    """Builds a `CNNHost` of these sizes when called."""

    classes: int
    """Outputs of the head."""
    in_channels: int
    """Channels of the images."""
    base_channels: int
    """Channels of the first block; each block doubles them."""
    kernel_size: int
    """Of every convolution, odd."""
    n_blocks: int = 3
    """Blocks of convolution, norm, ReLU and pooling."""

    def __call__(self) -> nn.Module:
        from esper.kasmina import CNNHost

        return CNNHost(
            num_classes=self.classes,
            in_channels=self.in_channels,
            n_blocks=self.n_blocks,
            base_channels=self.base_channels,
            kernel_size=self.kernel_size,
        )

    @property
    def slots(self) -> tuple[str, ...]:
        """The slot behind each block, before pooling."""
        return tuple(slot_id(0, col) for col in range(self.n_blocks))
