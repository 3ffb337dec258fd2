"""Convolution of channels-last images on ARM CPUs, with gradients as matrix products.

There oneDNN has no fast kernel for the gradient of the weights, and none for few input channels
(docs/performance.md has the times). The gradient of the weights is one product of the output's
gradient with the taps of the input, laid out as a matrix; that of the input is a convolution with
the kernel turned around.

Shape letters: B batch, C channels in, O channels out, K kernel taps, P pixels of all images.
"""

from __future__ import annotations

import platform
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.kasmina.ops.kernel_scope import current_scope
from esper.kasmina.ops.layout import is_channels_last, with_strides

ON_ARM: Final = platform.machine().lower() in ("aarch64", "arm64")
FEW_CHANNELS: Final = 4
"""Up to this many input channels the output is a product with the taps, too."""


def takes_products(x: Tensor, weight: Tensor, groups: int) -> bool:
    """Whether `convolve` is used for this convolution (odd kernel, stride 1, same size)."""
    return ON_ARM and groups == 1 and weight.shape[-1] > 1 and is_channels_last(x)


def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """Return `F.conv2d(x, weight, padding="same")` of channels-last images."""
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        out: Tensor = _Convolution.apply(x, weight)  # type: ignore[no-untyped-call]
        return out
    return _forward(x, weight)[0]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        out, taps_KP = _forward(x, weight)
        ctx.by_channel = taps_KP is not None
        ctx.save_for_backward(x if taps_KP is None else taps_KP, weight)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        source, weight = ctx.saved_tensors
        side = weight.shape[-1]
        grad = grad.contiguous(memory_format=torch.channels_last)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_PO = grad.permute(0, 2, 3, 1).reshape(-1, len(weight))
            if ctx.by_channel:
                grad_weight = (source @ grad_PO).t().reshape(weight.shape)
            else:
                product_OK = grad_PO.t() @ _taps_by_pixel(source, side)
                last = (len(weight), side, side, weight.shape[1])
                grad_weight = product_OK.view(last).permute(0, 3, 1, 2)
        if ctx.needs_input_grad[0]:
            turned = weight.flip(2, 3).transpose(0, 1)
            grad_x = F.conv2d(grad, turned, padding=side // 2)
        return grad_x, grad_weight


def _forward(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the output, and the taps by channel if it was computed from them."""
    side = weight.shape[-1]
    if x.shape[1] > FEW_CHANNELS:
        return F.conv2d(x, weight, padding=side // 2), None
    batch, _, height, width = x.shape
    seen_PK = _shared_taps(x, side)
    taps_KP = None
    if seen_PK is not None:
        out_PO = seen_PK @ weight.permute(2, 3, 1, 0).reshape(-1, len(weight))
    else:
        taps_KP = _taps_by_channel(x, side)
        out_PO = (weight.reshape(len(weight), -1) @ taps_KP).t().contiguous()
    outs, places = len(weight), height * width
    shape, stride = (batch, outs, height, width), (places * outs, 1, width * outs, outs)
    return with_strides(out_PO, shape, stride), taps_KP


def _shared_taps(x: Tensor, side: int) -> Tensor | None:
    """Taps by pixel of the shared input: dear to lay out, but once; then the product is cheaper."""
    shared = current_scope().shared_input
    if shared is None or x.data_ptr() != shared.x.data_ptr() or x.shape != shared.x.shape:
        return None
    if side not in shared.taps:
        shared.taps[side] = _taps_by_pixel(x, side)
    return shared.taps[side]


def _taps_by_channel(x: Tensor, side: int) -> Tensor:
    """`[C * K, P]`: each row is an image plane, shifted by a tap; for few channels."""
    batch, channels, height, width = x.shape
    around = side // 2
    wide = x.new_zeros(channels, batch, height + 2 * around, width + 2 * around)
    wide[:, :, around : around + height, around : around + width] = x.transpose(0, 1)
    plane, image, line, _ = wide.stride()
    shape = (channels, side, side, batch, height, width)
    return wide.as_strided(shape, (plane, line, 1, image, line, 1)).reshape(-1, x[:, 0].numel())


def _taps_by_pixel(x: Tensor, side: int) -> Tensor:
    """`[P, K * C]`: each row is what the kernel sees at a pixel; for channels-last images."""
    batch, channels, height, width = x.shape
    around = side // 2
    wide = F.pad(x.permute(0, 2, 3, 1), (0, 0, around, around, around, around))
    image, line, pixel, _ = wide.stride()
    shape = (batch, height, width, side, side * channels)
    seen = wide.as_strided(shape, (image, line, pixel, line, 1))
    return seen.reshape(batch * height * width, -1)
