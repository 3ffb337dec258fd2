"""Autograd of convolutions of many members, for any of our kernels.

Shape letters: R rows, B batch, C channels in, O channels out, H W.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.kasmina.ops.kernel_scope import kernel_scope
from esper.kasmina.ops.kernels.layout import dense_pixels, live_rows, stacked


@dataclass(frozen=True, slots=True)
class ConvolutionKernels:
    """Kernels of a convolution; activations may have any layout, gradients have dense pixels.

    They skip the rows that `KernelScope.live_R` names.
    """

    run: Callable[[Tensor, Tensor, torch.dtype, bool], Tensor]
    """(`x` `[R or 1, B, C, H, W]`, weights, what to compute in, False) -> `[R, B, O, H, W]`;
    (gradient of that, weights, type, True) -> gradient of `x`, of every row."""
    gradient_of_weights: Callable[[Tensor, Tensor, int], Tensor]
    """(`x`, gradient of the output, side of a kernel) -> gradient of the weights, in float32."""


class Convolution(torch.autograd.Function):
    """Convolution of `x` `[R or 1, B, C, H, W]` with weights `[R, O, C or 1, side, side]`.

    Returns `[R, B, O, H, W]`; under `vmap` all are without the row axis. No second derivative.
    """

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, dtype: torch.dtype, kernels: ConvolutionKernels
    ) -> Tensor:
        if x.ndim == 4:
            return kernels.run(x[None], weight[None], dtype, False)[0]
        return kernels.run(x, weight, dtype, False)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, ctx.dtype, ctx.kernels = inputs
        ctx.save_for_backward(x, weight)
        ctx.live = live_rows(1 if x.ndim == 4 else len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        with kernel_scope(live_R=ctx.live):
            return Convolution._gradients(ctx, dy)

    @staticmethod
    def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        one_row = x.ndim == 4
        if one_row:
            x, weight, dy = x[None], weight[None], dy[None]
        dy = dense_pixels(dy, ctx.dtype)
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = ctx.kernels.run(dy, weight, ctx.dtype, True).to(x.dtype)
            dx = dx.sum(dim=0, keepdim=True) if len(x) < len(dx) else dx
            dx = dx[0] if one_row else dx
        if ctx.needs_input_grad[1]:
            dw = ctx.kernels.gradient_of_weights(x, dy, weight.shape[-1])
            dw = dw[0] if one_row else dw
        return dx, dw, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, *settings: Any
    ) -> tuple[Tensor, int]:
        rows = stacked(x, in_dims[0], 1), stacked(weight, in_dims[1], info.batch_size)
        return Convolution.apply(*rows, *settings), 0
