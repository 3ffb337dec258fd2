"""Max-pool of 2x2 places on a CPU, for images that lie channel by channel.

Torch's own compares place by place and remembers which won, several times slower than the larger of
two slices, twice. Who won is kept as factors, 1 and 0, so that the way back is two products and two
differences. The gradient goes where torch's goes: to the first of the largest, row by row. (A
gradient that is infinite comes out as NaN beside the winner too: what is broken stays broken.)
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from esper.kasmina.layout import lies_channels_last, under_vmap

LEAST_VALUES: Final = 2**14
"""Of a batch of one member: with fewer, the number of operations costs more than they save."""


def pools_in_slices(x: Tensor, many_rows: bool = False) -> bool:
    """Whether `max_pool_in_slices` serves a batch: on a CPU, both sides even, large enough.

    Channels last, torch's own is as fast. `many_rows`: it is made of the batches of rows, however
    many (the way must not depend on their number).
    """
    if x.device.type != "cpu" or x.ndim < 3 or x.shape[-1] % 2 or x.shape[-2] % 2:
        return False
    return many_rows or under_vmap(x) or (x.numel() >= LEAST_VALUES and not lies_channels_last(x))


def max_pool_in_slices(x: Tensor) -> Tensor:
    """`F.max_pool2d(x, 2)` of images `[..., H, W]` whose sides are even."""
    if not torch.is_grad_enabled():
        wide = torch.maximum(x[..., ::2], x[..., 1::2])
        return torch.maximum(wide[..., ::2, :], wide[..., 1::2, :])
    out: Tensor = _MaxPool.apply(x)[0]  # type: ignore[no-untyped-call]
    return out


def _lost(first: Tensor, largest: Tensor) -> Tensor:
    """1 where the first is not the largest, else 0 (a comparison would have to be cast)."""
    return (largest - first).sign_()


class _MaxPool(torch.autograd.Function):
    """Leading axes are all alike to it, members of a vmap too.

    Gives the largest, whether the right one of each two won, and whether the lower one did.
    """

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left, right = x[..., ::2], x[..., 1::2]
        wide = torch.maximum(left, right)
        upper, lower = wide[..., ::2, :], wide[..., 1::2, :]
        largest = torch.maximum(upper, lower)
        return largest, _lost(left, wide), _lost(upper, largest)

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
        """All members at once; `in_dims` says which axis they are."""
        dim = in_dims[0]
        assert dim is not None, "vmap asks only where something is stacked"
        return _MaxPool.apply(x.movedim(dim, 0)), (0, 0, 0)  # type: ignore[no-untyped-call]
