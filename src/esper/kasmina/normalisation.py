"""Group norm on a CPU: of activations that lie channels last, and of many members under vmap.

Channels last, torch's own is slow where a sample has few channels, and its backward pass crashes
where the input needs no gradient (torch 2.13): a shadow row whose seed begins with a norm. With one
group a sample is one stretch of memory in either layout, so its norm is a layer norm over the whole
sample.

Shape letters: B batch, C channels, H height, W width, P places.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON: Final = 1e-5
"""As in torch's group norm."""
MANY_CHANNELS: Final = 16
"""From here on torch's group norm fills its vectors, channels last."""


def group_norm_channels_last(x: Tensor, groups: int, weight: Tensor, bias: Tensor) -> Tensor:
    """`F.group_norm(x, groups, weight, bias)` for an input that lies channels last."""
    if x.shape[1] >= MANY_CHANNELS and x.requires_grad:
        return F.group_norm(x, groups, weight, bias, EPSILON)
    out: Tensor = _GroupNorm.apply(x, weight, bias, groups)[0]  # type: ignore[no-untyped-call]
    return out


def group_norm_of_members(x: Tensor, groups: int, weight: Tensor, bias: Tensor) -> Tensor:
    """`F.group_norm(x, groups, weight, bias)` under vmap, each member with parameters of its own.

    Torch multiplies and adds in two passes with one number per channel; on small images that is a
    few neighbours at a time. Here it is one pass with a number for every place.
    """
    _, channels, height, width = x.shape
    wide = (channels, height * width)
    weight_CP, bias_CP = (p[:, None].expand(wide).reshape(-1) for p in (weight, bias))
    normed = F.group_norm(x, groups, eps=EPSILON).flatten(1)
    return torch.addcmul(bias_CP, normed, weight_CP).view(x.shape)


class _GroupNorm(torch.autograd.Function):
    """Output, mean and inverse deviation of each group; torch's kernels, chosen by layout."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, groups: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, channels, height, width = x.shape
        places = height * width
        if groups > 1 or channels >= MANY_CHANNELS:
            return torch.native_group_norm(
                x, weight, bias, batch, channels, places, groups, EPSILON
            )
        rows_BPC = x.permute(0, 2, 3, 1).reshape(batch, -1)
        each_PC, shift_PC = weight.repeat(places), bias.repeat(places)
        out, mean, rstd = torch.native_layer_norm(
            rows_BPC, [rows_BPC.shape[1]], each_PC, shift_PC, EPSILON
        )
        return _owning(out, x), mean, rstd

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, _, groups = inputs
        _, mean, rstd = output
        ctx.groups = groups
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(mean, rstd)
        ctx.save_for_backward(x, weight, mean, rstd)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight, mean, rstd = ctx.saved_tensors
        batch, channels, height, width = x.shape
        groups = ctx.groups
        grad_x, grad_weight, grad_bias = torch.ops.aten.native_group_norm_backward(
            _as(grads[0], x),
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


def _owning(rows: Tensor, x: Tensor) -> Tensor:
    """The same memory with the shape and strides of x, as a tensor of its own: autograd forbids
    work in place on a view that a function returns, such as a ReLU behind the norm."""
    out = x.new_empty(0)
    out.set_(rows.untyped_storage(), 0, x.shape, x.stride())
    return out


def _as(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient in the layout of x, which torch's kernel takes for granted."""
    return grad if grad.stride() == x.stride() else torch.empty_like(x).copy_(grad)
