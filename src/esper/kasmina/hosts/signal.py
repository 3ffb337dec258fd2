"""Signal host: 1-D blocks of convolution, norm, ReLU and max pool, then mean and linear.

Maps signals `[B, C, L]` to logits.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from esper.kasmina.hosts.cnn import HEAD_GAIN, check_sizes
from esper.kasmina.layers.layers import ChannelNorm, Conv1d, Linear, MaxPool1d, norm_relu
from esper.leyline.errors import EsperError
from esper.leyline.slots import InjectionSpec, Topology, slot_id


class SignalBlock(nn.Module):
    """Convolution, norm, ReLU; keeps the length."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = Conv1d(in_channels, out_channels, kernel_size)
        self.norm = ChannelNorm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        return norm_relu(self.norm, self.conv(x))


class SignalHead(nn.Module):
    """Mean over time, then a linear layer."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.linear = Linear(channels, num_classes, gain=HEAD_GAIN)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x.mean(dim=-1))
        return out


class SignalHost(nn.Module):
    """A chain of blocks with doubling channels, optionally up to a limit, on signals `[B, C, L]`.

    Slots: row 0 after each block, before pooling; row 1 after pooling. A block that does not pool
    still has its row-1 slot, right after the row-0 one.
    """

    topology: Topology = "signal"

    def __init__(
        self,
        num_classes: int = 10,
        in_channels: int = 1,
        n_blocks: int = 3,
        base_channels: int = 8,
        pool_layers: int | None = None,
        kernel_size: int = 3,
        max_channels: int | None = None,
    ) -> None:
        """`pool_layers`: number of leading blocks that pool (default: all).

        `max_channels`: upper limit of the doubling (default: none).
        """
        super().__init__()
        pools = n_blocks if pool_layers is None else pool_layers
        sizes = (num_classes, in_channels, n_blocks, base_channels, pools, kernel_size)
        check_sizes("SignalHost", *sizes)
        most = base_channels * 2**n_blocks if max_channels is None else max_channels
        if most < base_channels:
            raise EsperError(
                f"SignalHost max_channels={most}: must be base_channels={base_channels} or more"
            )
        self.channels = tuple(min(most, base_channels * 2**i) for i in range(n_blocks))
        inputs = (in_channels, *self.channels[:-1])
        self.blocks = nn.ModuleList(
            SignalBlock(c_in, c_out, kernel_size)
            for c_in, c_out in zip(inputs, self.channels, strict=True)
        )
        self.pools = nn.ModuleList(
            MaxPool1d() if i < pools else nn.Identity() for i in range(n_blocks)
        )
        self.head = SignalHead(self.channels[-1], num_classes)

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
