"""ResNets with batch norm, as a user writes them: torch's modules, cut into segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from esper.leyline.slots import InjectionSpec, Topology


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm beside a shortcut."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(c_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or c_in != c_out:
            projection = nn.Conv2d(c_in, c_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(c_out))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + self.shortcut(x))


class Head(nn.Module):
    """Mean over space, then a linear layer."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return out


@dataclass(frozen=True, slots=True)
class ResNetShape:
    """Sizes of a ResNet for small images."""

    widths: tuple[int, ...]
    """Channels of each stage; every stage but the first halves the image."""
    blocks: int
    """Blocks of each stage."""
    classes: int = 10


RESNET_18 = ResNetShape((64, 128, 256, 512), 2)
RESNET_20 = ResNetShape((16, 32, 64), 3)


class ResNet(nn.Module):
    """Stem, stages of basic blocks, head; a slot after each block."""

    topology: Topology = "cnn"

    def __init__(self, shape: ResNetShape) -> None:
        super().__init__()
        first = shape.widths[0]
        self.stem = nn.Sequential(
            nn.Conv2d(3, first, 3, 1, 1, bias=False), nn.BatchNorm2d(first), nn.ReLU()
        )
        blocks, c_in = [], first
        for stage, width in enumerate(shape.widths):
            for index in range(shape.blocks):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(BasicBlock(c_in, width, stride))
                c_in = width
        self.blocks = nn.ModuleList(blocks)
        self.head = Head(c_in, shape.classes)
        self._widths = [width for width in shape.widths for _ in range(shape.blocks)]

    def segments(self) -> Sequence[nn.Module]:
        """stem, blocks, head."""
        return (self.stem, *self.blocks, self.head)

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        """One slot after each block."""
        return tuple(
            InjectionSpec(f"r0c{index}", width, 1 + index, "after_block")
            for index, width in enumerate(self._widths)
        )

    def forward(self, x: Tensor) -> Tensor:
        for segment in self.segments():
            x = segment(x)
        return x
