"""Stacked optimiser steps on a GPU: one pass for the norms, one for clipping and update.

Bytes per parameter, at least: the norm reads 4; SGD reads 12 (value, gradient, momentum) and writes
8; AdamW reads 16 and writes 12. An inactive row is neither read nor written, and so stays
bit-identical.

The update rules and the order of operations are those of `optim.StackedOptimizer`; multiply-adds
are not contracted, roots and quotients are IEEE-rounded, and all sums have a fixed order.

Shape letters: E members, P parameters of one member.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.ops.kernels.grids import block_of, left_of
from esper.kasmina.ops.kernels.layout import row_launches

if TYPE_CHECKING:
    from esper.leyline.optim import OptimConfig

BLOCK = 1024
"""Parameters per program."""
NORM_BLOCK = 4096
NORM_ROUNDS = 4
"""A program sums the squares of at most NORM_ROUNDS times NORM_BLOCK gradients."""


@triton.jit
def _norm_kernel(
    grad,
    out,
    first,
    count,
    stride,
    ROUNDS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROOT: tl.constexpr,
):
    part, member = tl.program_id(0), (first + tl.program_id(1)).to(tl.int64)
    start = part.to(tl.int64) * (ROUNDS * BLOCK)
    left = left_of(count, start, ROUNDS * BLOCK)
    grad += member * stride + start
    total = tl.zeros((BLOCK,), tl.float32)
    for turn in range(ROUNDS):
        place = turn * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(grad + place, mask=place < left, other=0.0)
        total += value * value
    result = tl.sum(total, axis=0)
    if ROOT:
        result = tl.sqrt_rn(result)
    tl.store(out + member * tl.num_programs(0) + part, result)


def row_norms(grad_EP: Tensor) -> Tensor:
    """Return `[E]` the norm of each row."""
    grad_EP = _rows(grad_EP)
    members, count = grad_EP.shape
    block = min(NORM_BLOCK, triton.next_power_of_2(count))
    rounds = min(NORM_ROUNDS, triton.cdiv(count, block))
    parts = triton.cdiv(count, rounds * block)
    out_EK = grad_EP.new_empty(members, parts)
    with torch.cuda.device_of(grad_EP):
        for first, rows in row_launches(members):
            _norm_kernel[(parts, rows)](
                grad_EP,
                out_EK,
                first,
                count,
                grad_EP.stride(0),
                ROUNDS=rounds,
                BLOCK=block,
                ROOT=parts == 1,
                num_warps=max(1, min(8, block // 256)),
            )
    return out_EK[:, 0] if parts == 1 else out_EK.sum(dim=1).sqrt()


@triton.jit
def _row_places(active, first, count, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """Return a program's member, the start (int64) and offsets of its parameters, and the update
    mask."""
    member = (first + tl.program_id(1)).to(tl.int64)
    start, offset, mask = block_of(count, BLOCK)
    if MASKED:
        mask = mask & (tl.load(active + member) != 0)
    return member, start, offset, mask


@triton.jit
def _clipped(grad, norm, member, clip_norm, CLIP: tl.constexpr):
    """Return the gradient, clipped if its row's norm is above the limit; NaN stays NaN."""
    if CLIP:
        scale = tl.div_rn(clip_norm, tl.load(norm + member) + 1e-6)
        grad = grad * tl.where(scale > 1.0, 1.0, scale)
    return grad


@triton.jit
def _sgd_kernel(
    values,
    grads,
    momenta,
    rates,
    norms,
    active,
    first,
    count,
    grad_stride,
    clip_norm,
    momentum,
    weight_decay,
    CLIP: tl.constexpr,
    MASKED: tl.constexpr,
    DECAY: tl.constexpr,
    NESTEROV: tl.constexpr,
    BLOCK: tl.constexpr,
):
    member, start, offset, mask = _row_places(active, first, count, MASKED, BLOCK)
    here = (member * count + start) + offset
    grad = tl.load(grads + (member * grad_stride + start) + offset, mask=mask, other=0.0)
    grad = _clipped(grad, norms, member, clip_norm, CLIP)
    value = tl.load(values + here, mask=mask, other=0.0)
    if DECAY:
        grad = grad + weight_decay * value
    moment = momentum * tl.load(momenta + here, mask=mask, other=0.0) + grad
    update = moment
    if NESTEROV:
        update = grad + momentum * moment
    tl.store(momenta + here, moment, mask=mask)
    tl.store(values + here, value - tl.load(rates + member) * update, mask=mask)


@triton.jit
def _debias(steps, log_beta):
    """1 - beta**steps, in float64 to avoid cancellation."""
    return (1.0 - tl.exp(steps.to(tl.float64) * log_beta)).to(tl.float32)


@triton.jit
def _adamw_kernel(
    values,
    grads,
    means,
    squares,
    steps,
    rates,
    norms,
    active,
    first,
    count,
    grad_stride,
    clip_norm,
    keep_1,
    take_1,
    keep_2,
    take_2,
    log_1,
    log_2,
    eps,
    weight_decay,
    CLIP: tl.constexpr,
    MASKED: tl.constexpr,
    NEAR_END: tl.constexpr,
    BLOCK: tl.constexpr,
):
    member, start, offset, mask = _row_places(active, first, count, MASKED, BLOCK)
    here = (member * count + start) + offset
    grad = tl.load(grads + (member * grad_stride + start) + offset, mask=mask, other=0.0)
    grad = _clipped(grad, norms, member, clip_norm, CLIP)
    old = tl.load(means + here, mask=mask, other=0.0)
    # as torch's lerp
    mean = grad - (grad - old) * keep_1 if NEAR_END else old + take_1 * (grad - old)
    square = keep_2 * tl.load(squares + here, mask=mask, other=0.0) + take_2 * grad * grad
    taken = tl.load(steps + member)
    rate = tl.load(rates + member)
    root = tl.sqrt_rn(_debias(taken, log_2)) + tl.zeros_like(square)
    denominator = tl.div_rn(tl.sqrt_rn(square), root) + eps
    value = tl.load(values + here, mask=mask, other=0.0) * (1.0 - rate * weight_decay)
    value = value - tl.div_rn(tl.div_rn(rate, _debias(taken, log_1)) * mean, denominator)
    tl.store(means + here, mean, mask=mask)
    tl.store(squares + here, square, mask=mask)
    tl.store(values + here, value, mask=mask)


def update_rows(
    config: OptimConfig,
    values_EP: Tensor,
    grad_EP: Tensor,
    state: dict[str, Tensor],
    lr_E: Tensor,
    norm_E: Tensor | None,
    active_E: Tensor | None,
) -> None:
    """Clip and update the active rows (None: all) in place: values, moments and step counts."""
    members, count = values_EP.shape
    grad_EP = _rows(grad_EP)
    clip = config.clip_norm is not None and norm_E is not None
    lr_E = lr_E.contiguous()
    norms = lr_E if norm_E is None else norm_E.contiguous()
    active = lr_E if active_E is None else active_E.contiguous().view(torch.uint8)
    if config.kind != "sgd":
        state["steps"].add_(1 if active_E is None else active_E[:, None])
    kernel, moments, numbers, switches = _rule(config, state)
    switches |= {"CLIP": clip, "MASKED": active_E is not None, "BLOCK": BLOCK}
    sizes = count, grad_EP.stride(0), float(config.clip_norm or 1)
    with torch.cuda.device_of(values_EP):
        for first, rows in row_launches(members):
            kernel[triton.cdiv(count, BLOCK), rows](
                *(values_EP, grad_EP, *moments, lr_E, norms, active, first, *sizes, *numbers),
                **switches,
                enable_fp_fusion=False,
            )


def _rule(
    config: OptimConfig, state: dict[str, Tensor]
) -> tuple[Any, tuple[Tensor, ...], tuple[float, ...], dict[str, bool | int]]:
    """Return the kernel of an update rule, its moments, constants and switches."""
    decay = float(config.weight_decay)
    if config.kind == "sgd":
        switches: dict[str, bool | int] = {"DECAY": decay != 0, "NESTEROV": config.nesterov}
        return _sgd_kernel, (state["momentum"],), (float(config.momentum), decay), switches
    beta_1, beta_2 = map(float, config.betas)
    betas = beta_1, 1 - beta_1, beta_2, 1 - beta_2, _log(beta_1), _log(beta_2)
    moments = state["mean"], state["square"], state["steps"]
    numbers = *betas, float(config.eps), decay
    return _adamw_kernel, moments, numbers, {"NEAR_END": 1 - beta_1 >= 0.5}


def _log(beta: float) -> float:
    return math.log(beta) if beta else -math.inf


def _rows(grad_EP: Tensor) -> Tensor:
    """Return the gradient with contiguous rows, which may be strided."""
    return grad_EP if grad_EP.stride(1) == 1 else grad_EP.contiguous()
