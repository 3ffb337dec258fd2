"""Picklable host factories of the built-in tasks; torch is imported when a host is built."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from esper.leyline.errors import EsperError
from esper.leyline.slots import slot_id

if TYPE_CHECKING:
    from torch import nn

CNN_BLUEPRINTS: Final = (
    "norm", "depthwise", "conv_small", "conv_light", "conv_heavy", "attention",
)  # fmt: skip
"""Blueprints of image tasks; those that do not fit a slot are masked."""
TINY_BLUEPRINTS: Final = ("norm", "depthwise", "conv_light", "conv_heavy", "bottleneck", "twin")
"""Blueprints of tiny image hosts with many slots."""
RESNET_BLUEPRINTS: Final = ("twin", "norm", "depthwise", "conv_light", "conv_heavy", "bottleneck")
"""Blueprints of residual hosts; a twin is one more block of the stage."""
SIGNAL_BLUEPRINTS: Final = (
    "norm", "depthwise", "conv_small", "conv_light", "conv_heavy", "conv_dilated", "attention",
    "twin",
)  # fmt: skip
"""Blueprints of signal tasks."""
MLP_BLUEPRINTS: Final = ("norm", "gate", "mlp_small", "mlp", "twin")
"""Blueprints of tabular tasks."""
TRANSFORMER_BLUEPRINTS: Final = ("norm", "lora", "lora_large", "attention", "mlp_small", "mlp")
"""Blueprints of language tasks."""


@dataclass(frozen=True, slots=True)
class CNNFactory:
    """Builds a `CNNHost` when called."""

    classes: int
    """Outputs of the classifier."""
    in_channels: int
    """Channels of the images."""
    base_channels: int
    """Channels of the first block; each block doubles them."""
    kernel_size: int
    """Of every convolution, odd."""
    n_blocks: int = 3
    """Blocks of convolution, norm, ReLU and pooling."""
    pool_layers: int | None = None
    """Number of leading blocks that pool; None: all."""
    max_channels: int | None = None
    """Upper limit of the doubling; None: no limit."""
    rows: int = 1
    """1: slots only before pooling; 2: also after it."""

    def __post_init__(self) -> None:
        if self.rows not in (1, 2):
            raise EsperError(f"{type(self).__name__} rows={self.rows}: valid are 1 and 2")

    def __call__(self) -> nn.Module:
        from esper.kasmina import CNNHost

        return CNNHost(**self.sizes())

    def sizes(self) -> dict[str, Any]:
        """Arguments of the host."""
        sizes = {field.name: getattr(self, field.name) for field in fields(self)}
        del sizes["rows"]
        return {"num_classes": sizes.pop("classes"), **sizes}

    @property
    def slots(self) -> tuple[str, ...]:
        """Slots after each block, in execution order."""
        return tuple(slot_id(row, col) for col in range(self.n_blocks) for row in range(self.rows))


@dataclass(frozen=True, slots=True)
class SignalFactory(CNNFactory):
    """Builds a `SignalHost` when called: the same with kernels over points."""

    def __call__(self) -> nn.Module:
        from esper.kasmina import SignalHost

        return SignalHost(**self.sizes())


@dataclass(frozen=True, slots=True)
class ResNetFactory:
    """Builds a `ResNetHost` of one block per stage (ResNet-8) when called."""

    classes: int
    """Outputs of the classifier."""
    in_channels: int = 3
    """Channels of the images."""
    base_channels: int = 16
    """Channels of the first of three stages; each further stage doubles them."""

    def __call__(self) -> nn.Module:
        from esper.kasmina import ResNetHost

        return ResNetHost(
            num_classes=self.classes,
            in_channels=self.in_channels,
            base_channels=self.base_channels,
            norm="group",
        )

    @property
    def slots(self) -> tuple[str, ...]:
        """Two slots after each of the three stages, in execution order."""
        return tuple(slot_id(row, col) for col in range(3) for row in range(2))


@dataclass(frozen=True, slots=True)
class MLPFactory:
    """Builds an `MLPHost` when called."""

    classes: int
    """Outputs of the classifier."""
    in_features: int
    """Columns of the table."""
    width: int
    """Of every block."""
    n_layers: int
    """Blocks of linear layer, norm and GELU."""

    def __call__(self) -> nn.Module:
        from esper.kasmina import MLPHost

        return MLPHost(self.in_features, self.classes, self.width, self.n_layers)

    @property
    def slots(self) -> tuple[str, ...]:
        """Slots after each block."""
        return tuple(slot_id(0, col) for col in range(self.n_layers))


@dataclass(frozen=True, slots=True)
class TransformerFactory:
    """Builds a `TransformerHost` of two layers, 32 wide, when called."""

    vocab: int
    """Vocabulary size."""
    context: int
    """Sequence length."""

    def __call__(self) -> nn.Module:
        from esper.kasmina import TransformerHost

        return TransformerHost(self.vocab, n_embd=32, block_size=self.context)

    @property
    def slots(self) -> tuple[str, ...]:
        """Slots after each attention and each MLP, in execution order."""
        return tuple(slot_id(row, col) for col in range(2) for row in range(2))
