"""Torch's batch norm under vmap: the channels of all rows in one call of torch's kernel.

Torch's own rule passes the kernel no weights, and without them it wants running statistics of the
input's dtype: in half precision, where they are float32, it fails. It cannot take the factor of
`momentum=None` either, which is a number for each row. Here weights, statistics and inputs of all
rows stand side by side as channels, in their own dtypes.

Shape letters: R rows, B batch, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm

_norms: WeakKeyDictionary[nn.Module, tuple[TorchBatchNorm, ...]] = WeakKeyDictionary()
"""Module -> its batch norms that compute as torch's."""


BatchNormRule = Callable[[TorchBatchNorm, Tensor], Tensor]
"""(batch norm, input) -> output; updates the running statistics in training mode."""


@contextmanager
def batch_norms_for_vmap(module: nn.Module) -> Iterator[None]:
    """Let the batch norms of a module compute by `batch_norm` inside the block."""
    with batch_norms_by(module, batch_norm):
        yield


@contextmanager
def batch_norms_by(module: nn.Module, rule: BatchNormRule) -> Iterator[None]:
    """Let the batch norms of a module compute by another function inside the block."""
    if module not in _norms:
        parts = [part for part in module.modules() if isinstance(part, TorchBatchNorm)]
        as_torch = [p for p in parts if type(p).forward is TorchBatchNorm.forward]
        _norms[module] = tuple(p for p in as_torch if "forward" not in vars(p))
    norms = _norms[module]
    for norm in norms:
        vars(norm)["forward"] = partial(rule, norm)
    try:
        yield
    finally:
        for norm in norms:
            del vars(norm)["forward"]


def batch_norm(norm: TorchBatchNorm, x: Tensor) -> Tensor:
    """Return `norm(x)`, and update its running statistics in training mode."""
    norm._check_input_dim(x)  # type: ignore[no-untyped-call]
    mean, variance = norm.running_mean, norm.running_var
    updates = norm.training and norm.track_running_stats and mean is not None
    by_batch = norm.training or mean is None
    if by_batch:
        F._verify_batch_size(list(x.shape))  # type: ignore[attr-defined]
    held = (None, None) if by_batch else (mean, variance)
    out, mean_C, variance_C, *_ = _BatchNorm.apply(  # type: ignore[no-untyped-call]
        x, norm.weight, norm.bias, *held, norm.eps
    )
    if updates:
        update_statistics(norm, mean_C, variance_C)
    normed: Tensor = out
    return normed


def update_statistics(norm: TorchBatchNorm, mean_C: Tensor, variance_C: Tensor) -> None:
    """Move the running statistics towards those of a batch; `variance_C` is unbiased."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    factor: float | Tensor = 0.0 if norm.momentum is None else norm.momentum
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if norm.momentum is None:  # the mean of all batches
            factor = 1.0 / norm.num_batches_tracked.to(torch.float32)
    with torch.no_grad():
        for held, now in ((norm.running_mean, mean_C), (norm.running_var, variance_C)):
            held.mul_(1.0 - factor).add_(now.to(held.dtype) * factor)


class _BatchNorm(torch.autograd.Function):
    """Output, mean and unbiased variance of the batch, and what the backward pass needs."""

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor | None,
        variance: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        by_batch = mean is None
        like = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
        if mean is None or variance is None:
            mean, variance = (x.new_zeros(x.shape[1], dtype=like) for _ in range(2))
        weight = x.new_ones(x.shape[1], dtype=like) if weight is None else weight
        bias = x.new_zeros(x.shape[1], dtype=like) if bias is None else bias
        # Momentum 1: the statistics become those of this batch.
        out, save_mean, save_rstd = torch.native_batch_norm(
            x, weight, bias, mean, variance, by_batch, 1.0, eps
        )
        if by_batch:
            return out, mean, variance, save_mean, save_rstd
        return out, mean.clone(), variance.clone(), save_mean, save_rstd

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, _, held, _, eps = inputs
        _, mean, variance, save_mean, save_rstd = output
        ctx.eps, ctx.by_batch = eps, held is None
        ctx.affine = weight is not None
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(mean, variance, save_mean, save_rstd)
        ctx.save_for_backward(x, weight, mean, variance, save_mean, save_rstd)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, mean, variance, save_mean, save_rstd = ctx.saved_tensors
        grad = grads[0]
        if grad is None:
            return None, None, None, None, None, None
        if grad.stride() != x.stride():
            grad = torch.empty_like(x).copy_(grad)
        if weight is None:
            weight = torch.ones_like(mean)
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        held = (None, None) if ctx.by_batch else (mean, variance)
        found = torch.ops.aten.native_batch_norm_backward(
            grad, x, weight, *held, save_mean, save_rstd, ctx.by_batch, ctx.eps,
            [needs_x, ctx.affine and needs_weight, ctx.affine and needs_bias],
        )  # fmt: skip
        grad_x, grad_weight, grad_bias = found
        return grad_x, grad_weight, grad_bias, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, *rest: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """Compute all rows at once, their channels side by side."""
        rows, (*per_channel, eps) = info.batch_size, rest
        x_BRC = (
            x.unsqueeze(1).expand(-1, rows, *x.shape[1:])
            if in_dims[0] is None
            else (x.movedim(in_dims[0], 1))
        )
        flat = [
            None if value is None else _side_by_side(value, dim, rows)
            for value, dim in zip(per_channel, in_dims[1:-1], strict=True)
        ]
        x_BC = _dense(x_BRC.flatten(1, 2))
        out, *statistics = _BatchNorm.apply(x_BC, *flat, eps)  # type: ignore[no-untyped-call]
        split = [value.view(rows, -1) for value in statistics]
        return (out.unflatten(1, (rows, -1)), *split), (1, 0, 0, 0, 0)


def _dense(x: Tensor) -> Tensor:
    """Return x in one of the two layouts that torch's kernels know."""
    if x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return x
    return x.contiguous()


def _side_by_side(value_C: Tensor, dim: int | None, rows: int) -> Tensor:
    if dim is None:
        return value_C.repeat(rows)
    return value_C.movedim(dim, 0).reshape(-1)
