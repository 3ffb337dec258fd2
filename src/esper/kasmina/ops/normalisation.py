"""Group norm on a CPU for channels-last activations, and for many members under vmap.

For channels-last inputs with few channels torch's kernel is slow, and its backward crashes if the
input needs no gradient (torch 2.13), as in a shadow row whose seed starts with a norm. With one
group a sample is contiguous in either layout, so the norm is a layer norm over the whole sample.

Shape letters: B batch, C channels, H height, W width, P places.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.kasmina.ops.layout import with_strides

EPSILON: Final = 1e-5
"""As in torch's group norm."""
MANY_CHANNELS: Final = 16
"""Channels from which torch's channels-last group norm is fully vectorised."""


def group_norm_channels_last(x: Tensor, groups: int, weight: Tensor, bias: Tensor) -> Tensor:
    """Return `F.group_norm(x, groups, weight, bias)` for a channels-last input."""
    if x.shape[1] >= MANY_CHANNELS and x.requires_grad:
        return F.group_norm(x, groups, weight, bias, EPSILON)
    if not torch.is_grad_enabled():
        return _group_norm(x, weight, bias, groups)[0]
    out: Tensor = _GroupNorm.apply(x, weight, bias, groups)  # type: ignore[no-untyped-call]
    return out


def group_norm_of_members(x: Tensor, groups: int, weight: Tensor, bias: Tensor) -> Tensor:
    """Return `F.group_norm(x, groups, weight, bias)` under vmap with per-member parameters.

    Torch scales and shifts in two passes with one value per channel, which vectorises badly on
    small images. Here it is one pass with a value for every pixel.
    """
    channels = x.shape[1]
    wide = (channels, x[0, 0].numel())
    weight_CP, bias_CP = (p[:, None].expand(wide).reshape(-1) for p in (weight, bias))
    normed = F.group_norm(x, groups, eps=EPSILON).flatten(1)
    return torch.addcmul(bias_CP, normed, weight_CP).view(x.shape)


def _group_norm(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return output, mean and inverse deviation of each group; torch's kernels, by layout."""
    batch, channels, height, width = x.shape
    places = height * width
    if groups > 1 or channels >= MANY_CHANNELS:
        return torch.native_group_norm(x, weight, bias, batch, channels, places, groups, EPSILON)
    rows_BPC = x.permute(0, 2, 3, 1).reshape(batch, -1)
    each_PC, shift_PC = (p.expand(places, channels).reshape(-1) for p in (weight, bias))
    out, mean, rstd = torch.native_layer_norm(
        rows_BPC, [rows_BPC.shape[1]], each_PC, shift_PC, EPSILON
    )
    return with_strides(out, x.shape, x.stride()), mean, rstd


class _GroupNorm(torch.autograd.Function):
    """Not for vmap: `setup_context`, which that needs, looks up the signature at each call."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int) -> Tensor:
        out, mean, rstd = _group_norm(x, weight, bias, groups)
        ctx.groups = groups
        ctx.save_for_backward(x, weight, mean, rstd)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight, mean, rstd = ctx.saved_tensors
        batch, channels, height, width = x.shape
        groups = ctx.groups
        grad_x, grad_weight, grad_bias = torch.ops.aten.native_group_norm_backward(
            _match_layout(grad, x),
            x,
            mean.view(batch, groups),
            rstd.view(batch, groups),
            weight,
            batch,
            channels,
            height * width,
            groups,
            [True, True, True],
        )
        return grad_x, grad_weight, grad_bias, None


def _match_layout(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient in the layout of x, which torch's kernel assumes."""
    return grad if grad.stride() == x.stride() else torch.empty_like(x).copy_(grad)
