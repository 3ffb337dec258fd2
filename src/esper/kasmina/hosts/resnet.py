"""Residual host for images: a stem, stages of basic blocks, mean and linear.

One block per stage is ResNet-8, three are ResNet-20.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.hosts.cnn import Head
from esper.kasmina.layers.host_checks import require_least
from esper.kasmina.layers.layers import ChannelNorm, Conv2d, conv_norm_relu
from esper.leyline.errors import unknown_name
from esper.leyline.slots import InjectionSpec, Topology, slot_id

NormName = Literal["batch", "group"]
HEAD_GAIN = 0.1
"""Keeps the initial logits small at any depth: residual activations grow with it."""


def _make_norm(name: NormName, channels: int) -> nn.Module:
    """Return a batch norm, or a group norm without running statistics."""
    return nn.BatchNorm2d(channels) if name == "batch" else ChannelNorm(channels)


class Stem(nn.Module):
    """3x3 convolution, norm, ReLU."""

    def __init__(self, in_channels: int, channels: int, norm: NormName) -> None:
        super().__init__()
        self.conv = Conv2d(in_channels, channels, 3)
        self.norm = _make_norm(norm, channels)

    def forward(self, x: Tensor) -> Tensor:
        return conv_norm_relu(self.conv, self.norm, x)


class Shortcut(nn.Module):
    """Every `stride`-th pixel, with zeros for added channels; the identity if the shape stays."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.channels, self.stride = channels, stride

    def forward(self, x: Tensor) -> Tensor:
        if self.stride != 1:
            x = x[..., :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, 0, self.channels - x.shape[-3]))

    def extra_repr(self) -> str:
        return f"{self.channels}, stride={self.stride}"


class BasicBlock(nn.Module):
    """ReLU of shortcut plus two 3x3 convolutions with norms."""

    residual: bool = True
    """Where the shape stays, the shortcut is its input."""

    def __init__(
        self, in_channels: int, channels: int, stride: int = 1, norm: NormName = "batch"
    ) -> None:
        super().__init__()
        self.conv1 = Conv2d(in_channels, channels, 3, stride=stride)
        self.norm1 = _make_norm(norm, channels)
        self.conv2 = Conv2d(channels, channels, 3)
        self.norm2 = _make_norm(norm, channels)
        same = in_channels == channels and stride == 1
        self.shortcut = nn.Identity() if same else Shortcut(channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        h = conv_norm_relu(self.conv1, self.norm1, x)
        return F.relu(self.norm2(self.conv2(h)) + self.shortcut(x))


class ResNetHost(nn.Module):
    """Stem and stages of residual blocks; each stage but the first halves the image.

    Two slots per stage, both behind its last block: row 0 right after it, row 1 behind row 0. So a
    stage can grow by two blocks, one after the other: with a twin in every slot, ResNet-8 has the
    depth of ResNet-20.
    """

    topology: Topology = "cnn"

    def __init__(
        self,
        num_classes: int = 10,
        in_channels: int = 3,
        blocks_per_stage: int = 1,
        base_channels: int = 16,
        n_stages: int = 3,
        norm: NormName = "batch",
    ) -> None:
        """`base_channels`: of the stem and the first stage; each further stage doubles them."""
        super().__init__()
        require_least(
            "ResNetHost",
            num_classes=num_classes,
            in_channels=in_channels,
            blocks_per_stage=blocks_per_stage,
            base_channels=base_channels,
            n_stages=n_stages,
        )
        if norm not in get_args(NormName):
            raise unknown_name("norm", norm, get_args(NormName), "of ResNetHost")
        self.blocks_per_stage = blocks_per_stage
        self.channels = tuple(base_channels * 2**stage for stage in range(n_stages))
        self.stem = Stem(in_channels, base_channels, norm)
        self.blocks = nn.ModuleList()
        """Of all stages, in execution order."""
        self.ends = nn.ModuleList(nn.Identity() for _ in self.channels)
        """After each stage, between its two slots."""
        inputs = base_channels
        for stage, channels in enumerate(self.channels):
            for index in range(blocks_per_stage):
                stride = 2 if stage and not index else 1
                self.blocks.append(BasicBlock(inputs, channels, stride, norm))
                inputs = channels
        self.head = Head(inputs, num_classes, HEAD_GAIN)

    def segments(self) -> Sequence[nn.Module]:
        """stem, blocks of stage 1, end of stage 1, ..., head."""
        chain: list[nn.Module] = [self.stem]
        for stage, end in enumerate(self.ends):
            first = stage * self.blocks_per_stage
            chain += [*self.blocks[first : first + self.blocks_per_stage], end]
        return (*chain, self.head)

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        """Two slots per stage, in execution order."""
        length = self.blocks_per_stage + 1
        return tuple(
            InjectionSpec(slot_id(row, col), channels, (col + 1) * length - 1 + row, surface)
            for col, channels in enumerate(self.channels)
            for row, surface in enumerate(("after_block", "end_of_stage"))
        )

    def forward(self, x: Tensor) -> Tensor:
        for segment in self.segments():
            x = segment(x)
        return x
