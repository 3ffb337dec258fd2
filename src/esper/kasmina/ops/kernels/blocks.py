"""Convolution 3x3, group norm and ReLU of many members as one operation (`block.cu`).

Forward reads the input and writes the output, and leaves mean and deviation of each group; backward
recomputes the convolution from the input. Nothing in between is written to memory.

Shape letters: R rows, B batch, C channels in, O channels out, G groups, H W.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.kasmina.ops.block_parameters import BlockParameters
from esper.kasmina.ops.kernels.block_args import BlockArgs
from esper.kasmina.ops.kernels.block_plan import WARPS, BlockPlan, BlockShape, plan
from esper.kasmina.ops.kernels.layout import (
    dense_inside,
    dense_pixels,
    empty_activation,
    laid_out,
    launched,
    live_rows,
    output_activation,
    row_launches,
    row_stride,
    stacked,
)

HALF: Final = torch.bfloat16
"""The type of activations."""
MAX_IMAGES: Final = 2**30
"""Images of a row, rounded up to parts, are counted in 32 bits; all offsets have 64."""


def _launch(planned: BlockPlan, backward: bool, args: BlockArgs, parts: int, rows: int) -> None:
    """Launch a kernel over all rows, on the current device."""
    from esper.kasmina.ops.kernels.compiled import functions

    function = functions(planned, torch.cuda.current_device())[backward]
    for first, count in row_launches(rows):
        args.first_row = first
        function.launch((parts, count, 1), 32 * WARPS, args)


@cache
def unsupported_reason(shape: BlockShape, device: torch.device) -> str | None:
    """Return why a block of this shape is not fused on a device; None if it is."""
    from esper.kasmina.ops.kernels import compiled

    return shape.unsupported_reason() or compiled.unsupported_reason(device)


def shape_of(x: Tensor, weight: Tensor, groups: int) -> BlockShape:
    """Return the shape of a block, from one row or from all."""
    return BlockShape(x.shape[-3], weight.shape[-4], x.shape[-2], x.shape[-1], groups)


def _given(own: BlockParameters) -> dict[str, Tensor | int]:
    """Return parameters as arguments of the kernels."""
    out: dict[str, Tensor | int] = {"relu": own.relu}
    for name in ("weight", "scale", "shift"):
        value = dense_inside(getattr(own, name).float())
        out |= {name: value, f"{name}_row": value.stride(0)}
    return out


def _aligned(x: Tensor) -> Tensor:
    """Return `x` at an address that copies of 16 bytes can read; a copy if need be."""
    return x if x.data_ptr() % 16 == 0 else x.clone()


@launched
def run_forward(x: Tensor, own: BlockParameters, y: Tensor, **rows: Tensor | None) -> Tensor:
    """Write to `y`; return `[R, B, G, 2]`: mean and inverse deviation of each group.

    `x` and `y` are channels last, with rows as in memory; `rows`: further arguments of `block.cu`.
    """
    planned, batch = plan(shape_of(x, own.weight, own.groups)), y.shape[1]
    count = len(own.weight)
    statistics = torch.empty(count, batch, own.groups, 2, dtype=torch.float32, device=x.device)
    parts, steps = planned.forward_parts(batch, count)
    given = _given(own)
    args = BlockArgs.of(
        x=x, x_row=row_stride(x), y=y, y_row=y.stride(0), statistics=statistics, batch=batch,
        steps=steps, **given, **rows,
    )  # fmt: skip
    _launch(planned, False, args, parts, count)
    return statistics


@launched
def run_backward(
    x: Tensor,
    dy: Tensor,
    own: BlockParameters,
    statistics: Tensor,
    dx: Tensor | None,
    few_rows: bool = False,
    **rows: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Write to `dx` (None: not wanted); return the gradients of weights, scale and shift.

    `few_rows`: as groups of seeds have, which are divided into more parts.
    """
    weight, statistics = own.weight, statistics.contiguous()
    shape, (count, batch) = shape_of(x, weight, own.groups), (len(weight), dy.shape[1])
    planned = plan(shape)
    parts, steps = planned.backward_parts(batch, few_rows)
    weights = weight[0].numel()
    size = weights + 2 * shape.outputs
    partial = torch.empty(count, parts, size, dtype=torch.float32, device=x.device)
    given = _given(own)
    args = BlockArgs.of(
        x=x, x_row=row_stride(x), y=dy, y_row=dy.stride(0), statistics=statistics, dx=dx,
        dx_row=0 if dx is None else dx.stride(0), partial=partial, batch=batch, steps=steps,
        **given, **rows,
    )  # fmt: skip
    _launch(planned, True, args, parts, count)
    total = _sum_parts(partial)
    dw, dscale, dshift = total.split((weights, shape.outputs, shape.outputs), dim=1)
    return dw.reshape(weight.shape), dscale, dshift


def _sum_parts(partial: Tensor) -> Tensor:
    """Sum `[R, parts, ...]` over the parts."""
    if partial.device.type == "cpu":  # blocks by emulation need no Triton
        return partial.sum(dim=1)
    from esper.kasmina.ops.kernels.sums import add_parts

    return add_parts(partial)


class Block(torch.autograd.Function):
    """`x` `[R or 1, B, C, H, W]`, weights `[R, O, C, 3, 3]`, scale and shift `[R, O]` ->
    `[R, B, O, H, W]` and statistics; or one row of it all. No second derivative."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, groups: int, relu: bool
    ) -> tuple[Tensor, Tensor]:
        if x.ndim == 4:
            y, statistics = Block.forward(
                x[None], weight[None], scale[None], shift[None], groups, relu
            )
            return y[0], statistics[0]
        x = _aligned(laid_out(x, HALF)[0])
        y = output_activation((len(weight), x.shape[1], weight.shape[1], *x.shape[3:]), x)
        own = BlockParameters(weight, scale, shift, groups, relu)
        return y, run_forward(x, own, y, live=live_rows(len(weight)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.groups, ctx.relu = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)  # of statistics
        ctx.save_for_backward(*tensors, output[1])
        ctx.live = live_rows(1 if tensors[0].ndim == 4 else len(tensors[1]))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        one_row = saved[0].ndim == 4
        given, weight, scale, shift, statistics, dy = (
            value[None] if one_row else value for value in (*saved, dy)
        )
        (x, stored), dy, dx = laid_out(given, HALF), _aligned(dense_pixels(dy, HALF)), None
        x = _aligned(x)
        if ctx.needs_input_grad[0]:
            dx = empty_activation((len(weight), x.shape[1], stored, *x.shape[3:]), x)
        own = BlockParameters(weight, scale, shift, ctx.groups, ctx.relu)
        rest = run_backward(x, dy, own, statistics, dx, live=ctx.live)
        if dx is not None:
            dx = dx[:, :, : x.shape[2]].to(given.dtype)
            dx = dx.sum(dim=0, keepdim=True) if len(x) < len(dx) else dx
        out = (value[0] if one_row and value is not None else value for value in (dx, *rest))
        return (*out, None, None)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, *given: Any
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        parameters = (
            stacked(value, dim, info.batch_size)
            for value, dim in zip(given[:3], in_dims[1:4], strict=True)
        )
        return Block.apply(stacked(x, in_dims[0], 1), *parameters, *given[3:]), (0, 0)


def convolve_normalised(
    x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, groups: int, relu: bool
) -> Tensor:
    """Typed `Block.apply`, without the saved statistics."""
    out: Tensor = Block.apply(x, weight, scale, shift, groups, relu)[0]
    return out
