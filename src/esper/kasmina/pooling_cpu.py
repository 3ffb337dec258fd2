"""Max-pool of 2x2 places on a CPU, for images that lie channel by channel.

Torch's own compares place by place and remembers which won, several times slower than the largest
of four slices, which is all a forward needs. The gradient goes where torch's goes: to the first of
the largest, row by row.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from esper.kasmina.layout import lies_channels_last, under_vmap

LEAST_VALUES: Final = 2**14
"""Of a batch of one member: with fewer, the number of operations costs more than they save."""


def pools_in_slices(x: Tensor) -> bool:
    """Whether `max_pool_in_slices` serves a batch: on a CPU, both sides even, large enough.

    Channels last, torch's own is as fast.
    """
    if x.device.type != "cpu" or x.ndim < 3 or x.shape[-1] % 2 or x.shape[-2] % 2:
        return False
    return under_vmap(x) or (x.numel() >= LEAST_VALUES and not lies_channels_last(x))


def max_pool_in_slices(x: Tensor) -> Tensor:
    """`F.max_pool2d(x, 2)` of images `[..., H, W]` whose sides are even."""
    out: Tensor = _MaxPool.apply(x)  # type: ignore[no-untyped-call]
    return out


def _corners(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Views of the four places of every window, in torch's order."""
    upper, lower = x[..., ::2, :], x[..., 1::2, :]
    return upper[..., ::2], upper[..., 1::2], lower[..., ::2], lower[..., 1::2]


class _MaxPool(torch.autograd.Function):
    """Leading axes are all alike to it, members of a vmap too."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        wide = torch.maximum(x[..., ::2], x[..., 1::2])
        return torch.maximum(wide[..., ::2, :], wide[..., 1::2, :])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        x, largest = ctx.saved_tensors
        grad, left = torch.empty_like(x), grads[0]
        *places, last = zip(_corners(x), _corners(grad), strict=True)
        for values, share in places:
            taken = torch.where(values == largest, left, 0.0)
            share.copy_(taken)
            left = left - taken
        last[1].copy_(left)
        return grad

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None], x: Tensor) -> tuple[Tensor, int]:
        """All members at once; `in_dims` says which axis they are."""
        dim = in_dims[0]
        assert dim is not None, "vmap asks only where something is stacked"
        return max_pool_in_slices(x.movedim(dim, 0)), 0
