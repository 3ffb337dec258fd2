"""Dispatch of convolutions to torch, to matrix products on a CPU, or to our kernels.

On a CPU, torch's convolution of few channels on small images takes several times longer than its
arithmetic, especially when vmap stacks members into groups. There a 1x1 convolution is one product
of the weights with all pixels, and a larger kernel on a small image is one product with the matrix
of its taps (docs/performance.md). On a GPU in half precision our kernels are used
(`esper.kasmina.ops.fused`).

Shape letters: B batch, C channels in, O channels out, G groups, K kernel taps, P pixels of an
image.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from esper.kasmina.ops import fused
from esper.kasmina.ops.convolution_cpu import convolve, takes_products
from esper.kasmina.ops.kernel_scope import current_scope
from esper.kasmina.ops.layout import is_channels_last

MAX_MATRIX: Final = 2**15
"""Elements in a group's matrix above which torch's convolution is faster."""


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, groups: int, stride: int = 1
) -> Tensor:
    """Convolution of our modules: square odd kernel, size-preserving at stride 1."""
    if stride != 1:
        return F.conv2d(x, weight, bias, stride=stride, padding=padding, groups=groups)
    torches = current_scope().torch_convolutions
    half = None if torches else fused.half_type(x)
    if half is not None:
        fast = fused.conv2d(x, weight, groups, half)
        if fast is not None:
            return fast if bias is None else fast + bias.to(half).view(-1, 1, 1)
    if not _is_product(x, weight, groups):
        if not torches and _plain(x, weight) and takes_products(x, weight, groups):
            out = convolve(x, weight)
            return out if bias is None else out + bias.view(-1, 1, 1)
        return F.conv2d(x, weight, bias, stride=1, padding=padding, groups=groups)
    out = _pointwise(x, weight) if weight.shape[-1] == 1 else _dense(x, weight, groups)
    return out if bias is None else out + bias.view(-1, 1, 1)


def conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, groups: int, dilation: int
) -> Tensor:
    """Convolution of signals `[B, C, L]`: odd kernel, size-preserving, stride 1."""
    row, kernel = x.unsqueeze(-2), weight.unsqueeze(-2)  # as images of height 1
    if not _is_product(row, kernel, groups):
        return F.conv1d(x, weight, bias, padding=padding, groups=groups, dilation=dilation)
    out = (
        _pointwise(row, kernel) if weight.shape[-1] == 1 else _dense(row, kernel, groups, dilation)
    )
    out = out.squeeze(-2)
    return out if bias is None else out + bias.view(-1, 1)


def _plain(x: Tensor, weight: Tensor) -> bool:
    """Whether a convolution on a CPU needs no casts and is not traced by a compiler."""
    if x.device.type != "cpu" or x.dtype != weight.dtype:
        return False
    return not (torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling())


def _is_product(x: Tensor, weight: Tensor, groups: int) -> bool:
    if current_scope().torch_convolutions or not _plain(x, weight):
        return False
    out_channels, group_channels, height, width = weight.shape
    if height == width == 1:
        return groups == 1
    places = x.shape[-2] * x.shape[-1]
    return group_channels * (out_channels // groups) * places**2 <= MAX_MATRIX


def _pointwise(x: Tensor, weight: Tensor) -> Tensor:
    """1x1: product of the weights `[O, C]` with all pixels of the batch `[C, B * P]`."""
    batch, channels, height, width = x.shape
    if is_channels_last(x):
        product = x.permute(0, 2, 3, 1).reshape(-1, channels) @ weight.flatten(1).t()
        return product.view(batch, height, width, -1).permute(0, 3, 1, 2)
    product = weight.flatten(1) @ x.transpose(0, 1).reshape(channels, -1)
    return product.view(-1, batch, height, width).transpose(0, 1)


def _dense(x: Tensor, weight: Tensor, groups: int, dilation: int = 1) -> Tensor:
    """Product of the flattened image with the kernel's matrix, group by group."""
    batch, channels, height, width = x.shape
    out_channels, group_channels, *sides = weight.shape
    places, group_outs = height * width, out_channels // groups
    taps_KPP = _taps((sides[0], sides[1]), dilation, height, width, x.dtype)
    matrix = (weight.reshape(-1, sides[0] * sides[1]) @ taps_KPP).view(
        groups, group_outs, group_channels, places, places
    )
    matrix = matrix.permute(0, 2, 3, 1, 4).reshape(groups, group_channels * places, -1)
    if groups == 1:
        return (x.reshape(batch, channels * places) @ matrix[0]).view(batch, -1, height, width)
    x_GBP = x.reshape(batch, groups, group_channels * places).transpose(0, 1)
    return (x_GBP @ matrix).transpose(0, 1).reshape(batch, out_channels, height, width)


@lru_cache(maxsize=64)
def _taps(
    sides: tuple[int, int], dilation: int, height: int, width: int, dtype: torch.dtype
) -> Tensor:
    """`[K, P * P]`: 1 where a tap connects an input pixel (first) to an output pixel (second)."""
    rows, columns = np.divmod(np.arange(height * width), width)
    taps, across = sides[0] * sides[1], sides[1]
    taps_KPP = np.zeros((taps, height * width, height * width))
    for tap in range(taps):
        down, right = tap // across - sides[0] // 2, tap % across - across // 2
        from_row, from_column = rows + dilation * down, columns + dilation * right
        inside = (from_row >= 0) & (from_row < height) & (from_column >= 0) & (from_column < width)
        taps_KPP[tap, (from_row * width + from_column)[inside], np.flatnonzero(inside)] = 1.0
    with torch.inference_mode(False):  # cached for later calls, which may need gradients
        return torch.from_numpy(taps_KPP.reshape(taps, -1)).to(dtype)
