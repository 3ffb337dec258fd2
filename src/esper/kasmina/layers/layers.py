"""Layers of our hosts and seeds.

They differ from torch's in two ways: all convolutions go through one function (`conv2d`), and each
layer declares its initialisation (`draws`), so that the parameters of many members are drawn at
once without building one module per member.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.device import rng
from esper.kasmina.ops import fused
from esper.kasmina.ops.block_cpu import Steps
from esper.kasmina.ops.convolution import conv1d, conv2d
from esper.kasmina.ops.kernel_scope import current_scope
from esper.kasmina.ops.layout import is_channels_last, under_vmap
from esper.kasmina.ops.normalisation import group_norm_channels_last, group_norm_of_members
from esper.kasmina.ops.pooling import max_pool2d
from esper.leyline.errors import EsperError
from esper.leyline.streams import UInt64Array

BIRTH_SCALE = 0.05
"""Initial LayerScale of a seed: small enough to leave the host's output almost unchanged, large
enough for gradients to flow."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Initialisation of one parameter."""

    kind: Literal["uniform", "normal"]
    scale: float
    """Half-width of the uniform range, or standard deviation."""

    def sample(self, keys: UInt64Array, count: int, device: torch.device) -> Tensor:
        """Return `[len(keys), count]` initial values, one counter stream per row."""
        if self.kind == "uniform":
            return (rng.uniform(keys, count, device) * 2.0 - 1.0) * self.scale
        return rng.normal(keys, count, device) * self.scale

    def fill_(self, parameter: Tensor) -> None:
        """Fill one parameter from torch's generator (for a module built on its own)."""
        with torch.no_grad():
            if self.kind == "uniform":
                parameter.uniform_(-self.scale, self.scale)
            else:
                parameter.normal_(0.0, self.scale)


class DrawnModule(nn.Module):
    """Module whose random parameters are declared in `draws`; all others are constants."""

    draws: dict[str, Draw]

    def draw_parameters(self) -> None:
        """Initialise every declared parameter and record its version."""
        for name, draw in self.draws.items():
            draw.fill_(self.get_parameter(name))
        self._drawn_versions = {name: self.get_parameter(name)._version for name in self.draws}

    def unmodified_draws(self) -> dict[str, Draw]:
        """Return the draws of parameters that were not modified since `draw_parameters`."""
        return {
            name: draw
            for name, draw in self.draws.items()
            if self.get_parameter(name)._version == self._drawn_versions[name]
        }


class _Conv(DrawnModule):
    """Convolution with "same" padding and He-uniform weights."""

    space: ClassVar[int]
    """Axes of the kernel."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        groups: int = 1,
        dilation: int = 1,
        bias: bool = False,
    ) -> None:
        super().__init__()
        if kernel_size < 1 or kernel_size % 2 == 0:
            name = type(self).__name__
            raise EsperError(f"{name} kernel_size={kernel_size}: must be odd, so the size is kept")
        fan_in = in_channels // groups * kernel_size**self.space
        shape = (out_channels, in_channels // groups, *[kernel_size] * self.space)
        self.weight = nn.Parameter(torch.zeros(shape))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        self.kernel_size, self.padding = kernel_size, dilation * (kernel_size // 2)
        self.stride, self.groups, self.dilation = stride, groups, dilation
        self.draws = {"weight": Draw("uniform", math.sqrt(6.0 / fan_in))}
        self.draw_parameters()

    def extra_repr(self) -> str:
        out_channels, in_channels = self.weight.shape[:2]
        stride = "" if self.stride == 1 else f", stride={self.stride}"
        dilation = "" if self.dilation == 1 else f", dilation={self.dilation}"
        return (
            f"{in_channels * self.groups}, {out_channels}, kernel_size={self.kernel_size}, "
            f"groups={self.groups}{stride}{dilation}"
        )


class Conv2d(_Conv):
    """Convolution of images with "same" padding and He-uniform weights."""

    space = 2

    def forward(self, x: Tensor) -> Tensor:
        return conv2d(x, self.weight, self.bias, self.padding, self.groups, self.stride)


class Conv1d(_Conv):
    """Convolution of signals with "same" padding and He-uniform weights."""

    space = 1

    def forward(self, x: Tensor) -> Tensor:
        return conv1d(x, self.weight, self.bias, self.padding, self.groups, self.dilation)


CONVOLUTIONS: Final[dict[int, type[Conv1d | Conv2d]]] = {1: Conv1d, 2: Conv2d}
"""By the number of axes behind the channels."""


class Linear(DrawnModule):
    """Linear layer with uniform weights of half-width `gain / sqrt(in_features)` and zero bias.

    `gain=0` starts at 0; `draw` replaces the uniform range.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        gain: float = 1.0,
        draw: Draw | None = None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        draw = draw or Draw("uniform", gain / math.sqrt(in_features))
        self.draws = {"weight": draw} if draw.scale else {}
        self.draw_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        out_features, in_features = self.weight.shape
        return f"{in_features}, {out_features}"


def channel_groups(channels: int) -> int:
    """Return the number of groups of a `ChannelNorm`."""
    return math.gcd(channels, math.ceil(channels / 16))


class ChannelNorm(nn.Module):
    """Group norm without running statistics, at most 16 channels per group.

    Statistics are per sample, so a row without a seed is never evaluated with statistics gathered
    with it. A group has more than one value as long as the activation has more than one value per
    sample.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.groups = channel_groups(channels)
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return self.normalise(x, self.weight, self.bias)

    def normalise(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Apply the norm with these parameters instead of its own."""
        if fused.norm_fits(x, self.groups):
            return fused.group_norm(x, self.groups, weight, bias, relu=False)
        if is_channels_last(x):
            return group_norm_channels_last(x, self.groups, weight, bias)
        if x.device.type == "cpu" and x.ndim > 2 and under_vmap(x):
            return group_norm_of_members(x, self.groups, weight, bias)
        return F.group_norm(x, self.groups, weight, bias)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, groups={self.groups}"


class MaxPool1d(nn.MaxPool1d):
    """Halves the length of a signal, rounding up."""

    def __init__(self) -> None:
        super().__init__(2, ceil_mode=True)

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.max_pool2d(x.unsqueeze(-2), (1, 2), ceil_mode=True)  # vmaps on a CPU
        return pooled.squeeze(-2)


class MaxPool2d(nn.MaxPool2d):
    """Halves height and width, rounding up: a side of 1 stays 1."""

    new_grad = True
    """See `network.FusedRun.returns_new_grad`."""

    def __init__(self) -> None:
        super().__init__(2, ceil_mode=True)

    def forward(self, x: Tensor) -> Tensor:
        return max_pool2d(x)

    def pool_rows(self, x: Tensor, rows: int) -> Tensor:
        """Pool the samples of many rows as one batch."""
        return max_pool2d(x, many_rows=rows)


def channel_means(x: Tensor, axes: tuple[int, ...] = (-2, -1)) -> Tensor:
    """Return the mean of each channel of images `[B, C, H, W]`, or over the last axes given."""
    if isinstance(x, Tensor) and fused.norm_fits(x, 1):
        return fused.squeeze(x)[0]
    return x.mean(dim=axes)


class LayerScale(nn.Module):
    """One learnt factor per channel, small but not zero initially; the last layer of our seeds.

    Channels are the last axis, or the one before `space` axes (2 for images, 1 for signals).
    """

    def __init__(self, channels: int, space: int = 0, initial: float = BIRTH_SCALE) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((channels, *[1] * space), initial))

    def forward(self, x: Tensor) -> Tensor:
        if fused.half_type(x) is None:
            return x * self.gamma
        return x * self.gamma.to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.gamma.shape[0]}"


def norm_relu(norm: nn.Module, x: Tensor) -> Tensor:
    """Apply a norm and ReLU, fused if there is a kernel for it."""
    if isinstance(norm, ChannelNorm) and fused.norm_fits(x, norm.groups):
        return fused.group_norm(x, norm.groups, norm.weight, norm.bias, relu=True)
    h = norm(x)
    nobodys = type(norm) is ChannelNorm and not norm._forward_hooks
    return F.relu(h, inplace=nobodys and is_channels_last(h))


def scaled_norm(norm: nn.Module, scale: nn.Module, x: Tensor) -> Tensor:
    """Return `scale(norm(x))`, the end of a convolutional seed, fused if possible."""
    if (
        isinstance(x, Tensor)  # a tracer must see both modules
        and isinstance(norm, ChannelNorm)
        and isinstance(scale, LayerScale)
        and (x.device.type == "cpu" or fused.norm_fits(x, norm.groups))
    ):
        gamma = scale.gamma.flatten()
        return norm.normalise(x, norm.weight * gamma, norm.bias * gamma)
    scaled: Tensor = scale(norm(x))
    return scaled


def conv_norm_relu(conv: nn.Module, norm: nn.Module, x: Tensor) -> Tensor:
    """Apply a convolution, a norm and ReLU, fused as far as there are kernels."""
    whole = _block(conv, norm, x, None, relu=True)
    return norm_relu(norm, conv(x)) if whole is None else whole


def conv_norm_relu_pool(conv: nn.Module, norm: nn.Module, pool: nn.Module, x: Tensor) -> Tensor:
    """Apply a convolution, a norm, ReLU and a 2x2 max pool, fused as far as there are kernels."""
    whole = _block(conv, norm, x, None, relu=True, pool=True)
    return F.relu(pool(norm(conv(x)))) if whole is None else whole


def conv_scaled_norm(conv: nn.Module, norm: nn.Module, scale: nn.Module, x: Tensor) -> Tensor:
    """Return `scale(norm(conv(x)))`, the end of a convolutional seed, fused if possible."""
    whole = _block(conv, norm, x, scale, relu=False)
    return scaled_norm(norm, scale, conv(x)) if whole is None else whole


def _block(
    conv: nn.Module,
    norm: nn.Module,
    x: Tensor,
    scale: nn.Module | None,
    relu: bool,
    pool: bool = False,
) -> Tensor | None:
    """Compute a block in one kernel; None unless its parts are plainly ours and nobody listens."""
    on_cpu = fused.wants_cpu_blocks(x)
    if not (on_cpu or (fused.wants_blocks(x) and not pool)) or current_scope().torch_convolutions:
        return None
    if not isinstance(conv, Conv2d) or not isinstance(norm, ChannelNorm):
        return None
    if conv.stride != 1 or conv.groups != 1 or conv.bias is not None:
        return None
    if has_hooks(conv) or has_hooks(norm):
        return None
    weight: Tensor = norm.weight
    bias: Tensor = norm.bias
    if isinstance(scale, LayerScale):
        gamma = scale.gamma.flatten()
        weight, bias = weight * gamma, bias * gamma
    elif not relu:
        return None
    if on_cpu:
        steps = Steps(norm.groups, relu, pool)
        return fused.conv_norm_on_cpu(x, conv.weight, weight, bias, steps)
    return fused.conv_norm(x, conv.weight, weight, bias, norm.groups, relu)


def has_hooks(module: nn.Module) -> bool:
    """Whether the module or a submodule has any kind of hook."""
    return any(
        part._forward_hooks
        or part._forward_pre_hooks
        or part._backward_hooks
        or part._backward_pre_hooks
        for part in module.modules()
    )
