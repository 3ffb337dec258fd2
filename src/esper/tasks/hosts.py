"""Which hosts tasks start from: settings now, the module (and torch) only when one is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from esper.leyline.errors import EsperError
from esper.leyline.slots import slot_id

if TYPE_CHECKING:
    from torch import nn

CNN_BLUEPRINTS: Final = (
    "norm", "depthwise", "conv_small", "conv_light", "conv_heavy", "attention",
)  # fmt: skip
"""What image tasks may grow; those that fit."""
TRANSFORMER_BLUEPRINTS: Final = ("norm", "lora", "lora_large", "attention", "mlp_small", "mlp")
"""What language tasks may grow."""


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
    pool_layers: int | None = None
    """How many of the first blocks pool; None: all."""
    max_channels: int | None = None
    """Where the doubling ends; None: nowhere."""
    rows: int = 1
    """1: slots before pooling only; 2: behind it too."""

    def __post_init__(self) -> None:
        if self.rows not in (1, 2):
            raise EsperError(f"CNNFactory rows={self.rows}: valid are 1 and 2")

    def __call__(self) -> nn.Module:
        from esper.kasmina import CNNHost

        return CNNHost(
            num_classes=self.classes,
            in_channels=self.in_channels,
            n_blocks=self.n_blocks,
            base_channels=self.base_channels,
            kernel_size=self.kernel_size,
            pool_layers=self.pool_layers,
            max_channels=self.max_channels,
        )

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots behind each block, in the order they are run."""
        return tuple(slot_id(row, col) for col in range(self.n_blocks) for row in range(self.rows))


@dataclass(frozen=True, slots=True)
class TransformerFactory:
    """Builds a `TransformerHost` of these sizes when called."""

    vocab: int
    """Tokens there are."""
    context: int
    """Tokens of a sequence."""
    width: int = 32
    """Of the residual stream."""
    heads: int = 4
    """Of each attention."""
    layers: int = 2
    """Pairs of attention and MLP."""

    def __call__(self) -> nn.Module:
        from esper.kasmina import TransformerHost

        return TransformerHost(self.vocab, self.width, self.heads, self.layers, self.context)

    @property
    def slots(self) -> tuple[str, ...]:
        """Behind each attention and each MLP, in the order they are run."""
        return tuple(slot_id(row, col) for col in range(self.layers) for row in range(2))
