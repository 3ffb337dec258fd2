"""Seeds of signal hosts `[B, C, L]`: norms, convolutions along the signal, squeeze-excite.

Names mean what they mean for images, with kernels of 3 points instead of 3x3 pixels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.layers.layers import (
    ChannelNorm,
    Conv1d,
    LayerScale,
    Linear,
    norm_relu,
    scaled_norm,
)

SQUEEZE = 4
"""Hidden channels of bottleneck and attention are a quarter of the width."""
LEAST_HIDDEN = 8
"""Minimum number of hidden channels of a bottleneck."""
DILATION = 4
"""Distance of the points that conv_dilated combines first."""


@blueprint("norm", topologies=("signal",))
class SignalNorm(nn.Module):
    """The normalised activation, scaled per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = ChannelNorm(width)
        self.scale = LayerScale(width, space=1)

    def forward(self, x: Tensor) -> Tensor:
        return scaled_norm(self.norm, self.scale, x)


@blueprint("conv_small", topologies=("signal",))
class SignalConvSmall(nn.Module):
    """Convolution of single points, scale: linear, so it can be merged into what comes next."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = Conv1d(width, width, 1)
        self.scale = LayerScale(width, space=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.scale(self.conv(x))
        return out


@blueprint("conv_light", topologies=("signal",))
class SignalConvLight(nn.Module):
    """Convolution over 3 points, norm, scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = Conv1d(width, width, 3)
        self.norm = ChannelNorm(width)
        self.scale = LayerScale(width, space=1)

    def forward(self, x: Tensor) -> Tensor:
        return scaled_norm(self.norm, self.scale, self.conv(x))


@blueprint("conv_heavy", topologies=("signal",))
class SignalConvHeavy(nn.Module):
    """Convolution over 3 points, norm, ReLU, convolution over 3 points, norm, scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = Conv1d(width, width, 3)
        self.norm1 = ChannelNorm(width)
        self.conv2 = Conv1d(width, width, 3)
        self.norm2 = ChannelNorm(width)
        self.scale = LayerScale(width, space=1)

    def forward(self, x: Tensor) -> Tensor:
        h = norm_relu(self.norm1, self.conv1(x))
        return scaled_norm(self.norm2, self.scale, self.conv2(h))


@blueprint("conv_dilated", topologies=("signal",))
class SignalConvDilated(nn.Module):
    """Convolution over 3 points 4 apart, norm, ReLU, convolution over 3 points, norm, scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = Conv1d(width, width, 3, dilation=DILATION)
        self.norm1 = ChannelNorm(width)
        self.conv2 = Conv1d(width, width, 3)
        self.norm2 = ChannelNorm(width)
        self.scale = LayerScale(width, space=1)

    def forward(self, x: Tensor) -> Tensor:
        h = norm_relu(self.norm1, self.conv1(x))
        return scaled_norm(self.norm2, self.scale, self.conv2(h))


@blueprint("depthwise", topologies=("signal",))
class SignalDepthwise(nn.Module):
    """Depthwise convolution over 3 points, then of single points, norm, scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = Conv1d(width, width, 3, groups=width)
        self.pointwise = Conv1d(width, width, 1)
        self.norm = ChannelNorm(width)
        self.scale = LayerScale(width, space=1)

    def forward(self, x: Tensor) -> Tensor:
        return scaled_norm(self.norm, self.scale, self.pointwise(self.depthwise(x)))


@blueprint("bottleneck", topologies=("signal",))
class SignalBottleneck(nn.Module):
    """To few channels, convolution over 3 points there, and back, each with a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = max(LEAST_HIDDEN, width // SQUEEZE)
        self.down = Conv1d(width, hidden, 1)
        self.norm1 = ChannelNorm(hidden)
        self.conv = Conv1d(hidden, hidden, 3)
        self.norm2 = ChannelNorm(hidden)
        self.up = Conv1d(hidden, width, 1)
        self.norm3 = ChannelNorm(width)
        self.scale = LayerScale(width, space=1)

    def forward(self, x: Tensor) -> Tensor:
        h = norm_relu(self.norm1, self.down(x))
        h = norm_relu(self.norm2, self.conv(h))
        return scaled_norm(self.norm3, self.scale, self.up(h))


@blueprint("attention", topologies=("signal",), min_width=2)
class SignalSqueezeExcite(nn.Module):
    """Squeeze-excite: the activation times a learnt, signal-dependent weight per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = max(2, width // SQUEEZE)
        self.squeeze = Linear(width, hidden)
        self.excite = Linear(hidden, width)
        self.scale = LayerScale(width, space=1)

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.tanh(self.excite(F.silu(self.squeeze(x.mean(dim=-1)))))
        out: Tensor = self.scale(x * weights[..., None])
        return out
