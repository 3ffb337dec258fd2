"""Convolutional seeds on rows of an activation, read and changed where they lie (`block.cu`).

The kernels read the numbers of their rows themselves, so nothing is gathered and nothing scattered:
the first block reads its rows, the last one adds alpha times its result to them. The first also
leaves a copy of what it read, which backward needs. Backward does the same with the gradient.
Groups have different rows, so they are branches of a captured graph.

Shape letters: R rows of the activation, G rows of a group, B batch, C channels, H W.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.device.branches import Branches
from esper.kasmina.block_parameters import BlockParameters
from esper.kasmina.kernels.blocks import run_backward, run_forward
from esper.kasmina.kernels.layout import dense_pixels, empty_activation

LANE: Final = 2
"""Lane of the branches of seeds that work on rows in place."""


class SeedRows(NamedTuple):
    """Seeds of one kind in different rows of an activation."""

    rows: Tensor
    """`[G]` rows of the activation."""
    alpha: Tensor
    """`[G]`; an entry with alpha 0 is unused and touches no row."""
    blocks: Sequence[BlockParameters]


class SeedBlocks(torch.autograd.Function):
    """(h, owned, own gradient, kept for backward, for each group the number of groups and ReLU of
    its blocks; for each group index, alpha, and weight, scale, shift of each block) -> h with alpha
    times the seeds added to their rows."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        owned: bool,
        own_gradient: bool,
        keep: bool,
        settings: Sequence[Sequence[tuple[int, bool]]],
        *tensors: Tensor,
    ) -> Tensor:
        groups = _groups(settings, tensors)
        out = h.view_as(h) if owned else h.clone()
        # What outlives a branch is allocated outside of it, where memory is used again.
        inputs = [_allocate_inputs(out, group, keep) for group in groups]
        with Branches(h.device, LANE) as branches:
            statistics = [
                branches.run(partial(_run_forward, out, group, own, keep))
                for group, own in zip(groups, inputs, strict=True)
            ]
        ctx.settings, ctx.own_gradient = settings, own_gradient
        if keep:
            saved = (v for own in (*inputs, *statistics) for v in own)
            ctx.save_for_backward(*tensors, *saved)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        sizes = [len(blocks) for blocks in ctx.settings]
        given = sum(2 + 3 * size for size in sizes)
        saved = ctx.saved_tensors
        groups = _groups(ctx.settings, saved[:given])
        inputs = _split(saved[given : given + sum(sizes)], sizes)
        statistics = _split(saved[given + sum(sizes) :], sizes)
        total = dense_pixels(grad, inputs[0][0].dtype)
        rows_lie = total.stride(0) == total[0].numel() and total.data_ptr() % 16 == 0
        if total is grad and not (ctx.own_gradient and rows_lie):
            total = empty_activation(grad.shape, grad).copy_(grad)
        between = [[torch.empty_like(x) for x in own[1:]] for own in inputs]
        with Branches(grad.device, LANE) as branches:
            found = [
                branches.run(partial(_run_backward, total, *parts))
                for parts in zip(groups, inputs, statistics, between, strict=True)
            ]
        each = (value for own in found for value in (None, None, *own))
        return (total, *[None] * 4, *each)


def _allocate_inputs(h: Tensor, group: SeedRows, keep: bool) -> list[Tensor]:
    """Allocate what each block of a group reads; for the first one a copy, if it is kept."""
    shape = (len(group.rows), *h.shape[1:])
    own = [empty_activation(shape, h) for _ in group.blocks[1:]]
    return [empty_activation(shape, h) if keep else h, *own]


def _run_forward(h: Tensor, group: SeedRows, inputs: Sequence[Tensor], keep: bool) -> list[Tensor]:
    """Add the seeds of a group to their rows of `h`; return the statistics of its blocks."""
    statistics, last = [], len(group.blocks) - 1
    for number, block in enumerate(group.blocks):
        rows: dict[str, Tensor | None] = {"live": group.alpha}
        if number == 0:
            rows |= {"x_index": group.rows, "kept": inputs[0] if keep else None}
        if number == last:
            rows |= {"y_index": group.rows, "alpha": group.alpha}
        x = h if number == 0 else inputs[number]
        y = h if number == last else inputs[number + 1]
        statistics.append(run_forward(x, block, y, **rows))
    return statistics


def _run_backward(
    grad: Tensor,
    group: SeedRows,
    inputs: Sequence[Tensor],
    statistics: Sequence[Tensor],
    between: Sequence[Tensor],
) -> list[Tensor]:
    """Add the gradients of a group's inputs to their rows; return those of its parameters.

    `between`: where the gradient goes between two blocks.
    """
    found, last = list[Tensor](), len(group.blocks) - 1
    for number in reversed(range(len(group.blocks))):
        rows: dict[str, Tensor | None] = {"live": group.alpha}
        if number == last:
            rows |= {"y_index": group.rows, "alpha": group.alpha}
        if number == 0:
            rows |= {"dx_index": group.rows}
        dy = grad if number == last else between[number]
        dx = grad if number == 0 else between[number - 1]
        own = run_backward(inputs[number], dy, group.blocks[number], statistics[number], dx, **rows)
        found = [*own, *found]
    return found


def _groups(
    settings: Sequence[Sequence[tuple[int, bool]]], tensors: Sequence[Tensor]
) -> list[SeedRows]:
    """Put together what `add_seeds` took apart."""
    out, rest = [], iter(tensors)
    for blocks in settings:
        index, alpha = next(rest), next(rest)
        own = [BlockParameters(next(rest), next(rest), next(rest), *setting) for setting in blocks]
        out.append(SeedRows(index, alpha, own))
    return out


def _split(tensors: Sequence[Tensor], sizes: Sequence[int]) -> list[list[Tensor]]:
    rest = iter(tensors)
    return [[next(rest) for _ in range(size)] for size in sizes]


def add_seeds(h: Tensor, groups: Sequence[SeedRows], owned: bool, own_gradient: bool) -> Tensor:
    """Return `h` with alpha times the seeds of each group added to their rows.

    A row may be in one group. `owned`, `own_gradient`: nothing else refers to `h`, or to its
    gradient, so that it is changed in place.
    """
    settings = [[(block.groups, block.relu) for block in group.blocks] for group in groups]
    tensors = (
        value
        for index, alpha, blocks in groups
        for value in (index, alpha, *(v for block in blocks for v in block[:3]))
    )
    keep = torch.is_grad_enabled()
    out: Tensor = SeedBlocks.apply(h, owned, own_gradient, keep, settings, *tensors)
    return out
