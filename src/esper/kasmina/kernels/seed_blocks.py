"""Convolutional seeds on rows of an activation, read and changed where they lie (`block.cu`).

The kernels read the numbers of their rows themselves, so nothing is gathered and nothing scattered:
the first block reads its rows, the last one adds alpha times its result to them. The first also
leaves a copy of what it read, which backward needs. Backward does the same with the gradient.

Shape letters: R rows of the activation, G rows of the group, B batch, C channels, H W.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.kasmina.block_parameters import BlockParameters
from esper.kasmina.kernels.blocks import run_backward, run_forward
from esper.kasmina.kernels.layout import dense_pixels, empty_activation


class SeedBlocks(torch.autograd.Function):
    """(h, owned, own gradient, kept for backward, index, alpha, settings, weight, scale, shift of
    each block) -> h with alpha times the seeds added to the rows `index`."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        owned: bool,
        own_gradient: bool,
        keep: bool,
        index: Tensor,
        alpha: Tensor,
        settings: Sequence[tuple[int, bool]],
        *tensors: Tensor,
    ) -> Tensor:
        blocks = _blocks(settings, tensors)
        out = h.view_as(h) if owned else h.clone()
        shape = (len(index), *h.shape[1:])
        inputs, statistics = [empty_activation(shape, h) if keep else h], []
        for number, block in enumerate(blocks):
            first, last = number == 0, number == len(blocks) - 1
            y = out if last else empty_activation(shape, h)
            rows: dict[str, Tensor | None] = {"live": alpha}
            rows |= {"x_index": index, "kept": inputs[0] if keep else None} if first else {}
            rows |= {"y_index": index, "alpha": alpha} if last else {}
            statistics.append(run_forward(out if first else inputs[-1], block, y, **rows))
            inputs += [] if last else [y]
        ctx.settings, ctx.own_gradient = settings, own_gradient
        if keep:
            ctx.save_for_backward(index, alpha, *tensors, *inputs, *statistics)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        count = len(ctx.settings)
        index, alpha, *rest = ctx.saved_tensors
        blocks = _blocks(ctx.settings, rest[: 3 * count])
        inputs, statistics = rest[3 * count : 4 * count], rest[4 * count :]
        total = dense_pixels(grad, inputs[0].dtype)
        rows_lie = total.stride(0) == total[0].numel() and total.data_ptr() % 16 == 0
        if total is grad and not (ctx.own_gradient and rows_lie):
            total = empty_activation(grad.shape, grad).copy_(grad)
        dy, found = total, list[Tensor]()
        for number in reversed(range(count)):
            first, last = number == 0, number == count - 1
            dx = total if first else torch.empty_like(inputs[number])
            rows: dict[str, Tensor | None] = {"live": alpha}
            rows |= {"y_index": index, "alpha": alpha} if last else {}
            rows |= {"dx_index": index} if first else {}
            own = run_backward(inputs[number], dy, blocks[number], statistics[number], dx, **rows)
            found, dy = [*own, *found], dx
        return (total, *[None] * 6, *found)


def _blocks(
    settings: Sequence[tuple[int, bool]], tensors: Sequence[Tensor]
) -> list[BlockParameters]:
    return [
        BlockParameters(weight, scale, shift, *setting)
        for weight, scale, shift, setting in zip(
            tensors[0::3], tensors[1::3], tensors[2::3], settings, strict=True
        )
    ]


def add_seeds(
    h: Tensor,
    index: Tensor,
    alpha: Tensor,
    blocks: Sequence[BlockParameters],
    owned: bool,
    own_gradient: bool,
) -> Tensor:
    """Return `h` with alpha times the seeds of rows `index` added to them.

    An entry with alpha 0 is unused and touches no row. `owned`, `own_gradient`: nothing else refers
    to `h`, or to its gradient, so that it is changed in place.
    """
    settings = [(block.groups, block.relu) for block in blocks]
    tensors = (v for block in blocks for v in (block.weight, block.scale, block.shift))
    keep = torch.is_grad_enabled()
    out: Tensor = SeedBlocks.apply(h, owned, own_gradient, keep, index, alpha, settings, *tensors)
    return out
