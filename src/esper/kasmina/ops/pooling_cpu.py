"""2x2 max pooling on a CPU for contiguous (NCHW) images.

Taking the larger of two slices twice is several times faster than torch's kernel. The winners are
stored as factors 1 and 0, so that the backward pass is two products and two differences. Gradients
go to the same element as in torch: the first maximum in row order. (An infinite gradient also gives
NaN beside the winner.)
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from esper.kasmina.ops.layout import is_channels_last, under_vmap

MIN_VALUES: Final = 2**14
"""Minimum size of a member's batch; below it the number of operations costs more than it saves."""


def can_pool_in_slices(x: Tensor, many_rows: bool = False) -> bool:
    """Whether `max_pool_in_slices` applies: on a CPU, both sides even, large enough.

    Channels last, torch is as fast where gradients are needed. `many_rows`: the batch holds several
    rows; the decision must not depend on their number.
    """
    if x.device.type != "cpu" or x.ndim < 3 or x.shape[-1] % 2 or x.shape[-2] % 2:
        return False
    if many_rows or under_vmap(x):
        return True
    return x.numel() >= MIN_VALUES and not (torch.is_grad_enabled() and is_channels_last(x))


def max_pool_in_slices(x: Tensor) -> Tensor:
    """Return `F.max_pool2d(x, 2)` of images `[..., H, W]` with even sides."""
    if not torch.is_grad_enabled():
        if is_channels_last(x):
            return _pool_channels_last(x)
        wide = torch.maximum(x[..., ::2], x[..., 1::2])
        return torch.maximum(wide[..., ::2, :], wide[..., 1::2, :])
    out: Tensor = _MaxPool.apply(x)[0]  # type: ignore[no-untyped-call]
    return out


def _pool_channels_last(x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    lines = x.permute(0, 2, 3, 1).view(batch, height // 2, 2, width * channels)
    tall = torch.maximum(lines[:, :, 0], lines[:, :, 1])
    pairs = tall.view(batch, height // 2, width // 2, 2, channels)
    return torch.maximum(pairs[..., 0, :], pairs[..., 1, :]).permute(0, 3, 1, 2)


def _is_loser(first: Tensor, largest: Tensor) -> Tensor:
    """1 where the first is not the maximum, else 0 (without a comparison that needs a cast)."""
    return (largest - first).sign_()


class _MaxPool(torch.autograd.Function):
    """Treats all leading axes alike, including the members of a vmap.

    Returns the maximum, whether the right one of each pair won, and whether the lower one did.
    """

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left, right = x[..., ::2], x[..., 1::2]
        wide = torch.maximum(left, right)
        upper, lower = wide[..., ::2, :], wide[..., 1::2, :]
        largest = torch.maximum(upper, lower)
        return largest, _is_loser(left, wide), _is_loser(upper, largest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, ...]) -> None:
        _, went_right, went_down = output
        ctx.mark_non_differentiable(went_right, went_down)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(went_right, went_down)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        went_right, went_down = ctx.saved_tensors
        grad = grads[0]
        wide = torch.empty_like(went_right)
        lower = torch.mul(grad, went_down, out=wide[..., 1::2, :])
        torch.sub(grad, lower, out=wide[..., ::2, :])
        whole = wide.new_empty(*wide.shape[:-1], 2 * wide.shape[-1])
        right = torch.mul(wide, went_right, out=whole[..., 1::2])
        torch.sub(wide, right, out=whole[..., ::2])
        return whole

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None], x: Tensor
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int, int]]:
        """Compute all members at once."""
        dim = in_dims[0]
        assert dim is not None, "vmap calls this only for a stacked input"
        return _MaxPool.apply(x.movedim(dim, 0)), (0, 0, 0)  # type: ignore[no-untyped-call]
