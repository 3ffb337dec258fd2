"""Convolutional hosts: blocks of convolution, norm, ReLU and max pool, then mean and linear.

One chain for images `[B, C, H, W]` (`CNNHost`) and signals `[B, C, L]` (`SignalHost`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from esper.kasmina.layers.host_checks import require_least
from esper.kasmina.layers.layers import (
    ChannelNorm,
    Conv1d,
    Conv2d,
    Linear,
    MaxPool1d,
    MaxPool2d,
    channel_means,
    conv_norm_relu,
    conv_norm_relu_pool,
)
from esper.leyline.errors import EsperError
from esper.leyline.slots import InjectionSpec, Topology, slot_id

HEAD_GAIN = 0.5
"""Keeps the initial logits small, so that the first loss is close to ln(classes)."""


class ConvBlock(nn.Module):
    """Convolution, norm, ReLU; keeps the spatial size."""

    new_grad = True
    """See `network.FusedRun.returns_new_grad`."""
    new_output = True
    """See `network.FusedRun.returns_new_output`."""
    convolution: ClassVar[type[Conv1d | Conv2d]] = Conv2d

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = self.convolution(in_channels, out_channels, kernel_size)
        self.norm = ChannelNorm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        return conv_norm_relu(self.conv, self.norm, x)

    def fused_with(self, following: nn.Module) -> nn.Module | None:
        """Return this block fused with the following segment; None if that saves nothing."""
        known = type(self) is ConvBlock and type(following) is MaxPool2d
        parts = {*self._modules, *self._parameters, *self._buffers}
        added = parts != {"conv", "norm"} or "forward" in {*vars(self), *vars(following)}
        return _PooledBlock(self) if known and not added else None


class _PooledBlock(nn.Module):
    """A block and its max pool, with the ReLU last, where only a quarter of the values is left.

    max(relu(x)) equals relu(max(x)) bit for bit, and so do the gradients.
    """

    def __init__(self, block: ConvBlock) -> None:
        super().__init__()
        self.conv, self.norm, self.pool = block.conv, block.norm, MaxPool2d()

    def forward(self, x: Tensor) -> Tensor:
        return conv_norm_relu_pool(self.conv, self.norm, self.pool, x)


class Head(nn.Module):
    """Mean over space, then a linear layer."""

    new_grad = True
    """See `network.FusedRun.returns_new_grad`."""
    axes: ClassVar[tuple[int, ...]] = (-2, -1)

    def __init__(self, channels: int, num_classes: int, gain: float = HEAD_GAIN) -> None:
        super().__init__()
        self.linear = Linear(channels, num_classes, gain=gain)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(channel_means(x, self.axes))
        return out


class SignalBlock(ConvBlock):
    """The same on signals."""

    convolution = Conv1d


class SignalHead(Head):
    """Mean over time, then a linear layer."""

    axes = (-1,)


class _ConvHost(nn.Module):
    """A chain of blocks with doubling channels, optionally up to a limit.

    Slots: row 0 after each block, before pooling; row 1 after pooling. A block that does not pool
    still has its row-1 slot, right after the row-0 one.
    """

    topology: Topology
    block: ClassVar[type[ConvBlock]]
    pool: ClassVar[type[nn.Module]]
    classifier: ClassVar[type[Head]]
    usual_channels: ClassVar[int]
    """Channels of the input unless given."""

    def __init__(
        self,
        num_classes: int = 10,
        in_channels: int | None = None,
        n_blocks: int = 3,
        base_channels: int = 8,
        pool_layers: int | None = None,
        kernel_size: int = 3,
        max_channels: int | None = None,
    ) -> None:
        """`in_channels`: 3 for images, 1 for signals unless given.

        `pool_layers`: number of leading blocks that pool (default: all).
        `max_channels`: upper limit of the doubling (default: none).
        """
        super().__init__()
        given = self.usual_channels if in_channels is None else in_channels
        pools = n_blocks if pool_layers is None else pool_layers
        host = type(self).__name__
        require_least(
            host,
            num_classes=num_classes,
            in_channels=given,
            n_blocks=n_blocks,
            base_channels=base_channels,
            kernel_size=kernel_size,
        )
        if kernel_size % 2 == 0:
            raise EsperError(f"{host} kernel_size={kernel_size}: must be odd, to keep the size")
        if not 0 <= pools <= n_blocks:
            raise EsperError(
                f"{host} pool_layers={pools}: must be between 0 and n_blocks={n_blocks}"
            )
        most = base_channels * 2**n_blocks if max_channels is None else max_channels
        if most < base_channels:
            raise EsperError(
                f"{host} max_channels={most}: must be base_channels={base_channels} or more"
            )
        self.channels = tuple(min(most, base_channels * 2**i) for i in range(n_blocks))
        inputs = (given, *self.channels[:-1])
        self.blocks = nn.ModuleList(
            self.block(c_in, c_out, kernel_size)
            for c_in, c_out in zip(inputs, self.channels, strict=True)
        )
        self.pools = nn.ModuleList(
            self.pool() if i < pools else nn.Identity() for i in range(n_blocks)
        )
        self.head = self.classifier(self.channels[-1], num_classes)

    def segments(self) -> Sequence[nn.Module]:
        """block, pool, block, pool, ..., head."""
        chain = [m for pair in zip(self.blocks, self.pools, strict=True) for m in pair]
        return (*chain, self.head)

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        """Two slots per block, in execution order."""
        return tuple(
            InjectionSpec(slot_id(row, col), channels, 2 * col + row, surface)
            for col, channels in enumerate(self.channels)
            for row, surface in enumerate(("pre_pool", "post_pool"))
        )

    def forward(self, x: Tensor) -> Tensor:
        for segment in self.segments():
            x = segment(x)
        return x


class CNNHost(_ConvHost):
    """A chain of blocks with doubling channels, up to a limit if given, on `[B, C, H, W]`."""

    topology: Topology = "cnn"
    block = ConvBlock
    pool = MaxPool2d
    classifier = Head
    usual_channels = 3


class SignalHost(_ConvHost):
    """A chain of blocks with doubling channels, up to a limit if given, on `[B, C, L]`."""

    topology: Topology = "signal"
    block = SignalBlock
    pool = MaxPool1d
    classifier = SignalHead
    usual_channels = 1
