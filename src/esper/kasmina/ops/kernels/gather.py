"""Parameters of rows, read from their members, and gradients of rows returned to them.

Shape letters: E members, R rows, P parameters of one member.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.ops.kernels.grids import block_of
from esper.kasmina.ops.kernels.layout import launched, next_power, row_launches

BLOCK: Final = 1024
"""Parameters per program forward."""
ROWS: Final = 16
"""Rows that a program looks at backward in one go; the same for all plans, for each number would be
a kernel to build in the middle of a run."""
MAX_BLOCK: Final = 256
"""Parameters per program backward, at most."""


@triton.jit
def _gather(flat, member, out, first, count, stride, BLOCK: tl.constexpr):
    row = (first + tl.program_id(1)).to(tl.int64)
    source = tl.load(member + row).to(tl.int64)
    start, offset, inside = block_of(count, BLOCK)
    value = tl.load(flat + (source * stride + start) + offset, mask=inside)
    tl.store(out + (row * count + start) + offset, value, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _scatter(
    grad, member, frozen, out, first, rows, count, stride, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """out[e] = the sum of grad[r] over the rows r of member e that are not frozen"""
    own = (first + tl.program_id(1)).to(tl.int64)
    start, offset, inside = block_of(count, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, rows, ROWS):
        row = begin + tl.arange(0, ROWS)
        there = row < rows
        mine = there & (tl.load(member + row, mask=there, other=0).to(tl.int64) == own)
        mine = mine & (tl.load(frozen + row, mask=there, other=1) == 0)
        place = grad + (row.to(tl.int64) * stride + start)[:, None] + offset[None, :]
        value = tl.load(place, mask=mine[:, None] & inside[None, :], other=0.0)
        total += tl.sum(value, axis=0)
    tl.store(out + (own * count + start) + offset, total, mask=inside)


@launched
def gather_rows(flat_EP: Tensor, member_R: Tensor) -> Tensor:
    """Return `[R, P]`: row r is that of member `member_R[r]`."""
    out = flat_EP.new_empty(len(member_R), flat_EP.shape[1])
    count = flat_EP.shape[1]
    for first, rows in row_launches(len(member_R)):
        _gather[(triton.cdiv(count, BLOCK), rows)](
            flat_EP, member_R, out, first, count, flat_EP.stride(0), BLOCK=BLOCK, num_warps=4
        )
    return out


@launched
def scatter_rows(grad_RP: Tensor, member_R: Tensor, frozen_R: Tensor, members: int) -> Tensor:
    """Return `[E, P]`: the gradients of each member's rows that are not frozen, added up."""
    grad_RP = grad_RP if grad_RP.stride(1) == 1 else grad_RP.contiguous()
    rows, count = grad_RP.shape
    out = grad_RP.new_empty(members, count)
    block = min(next_power(count), MAX_BLOCK)
    for first, number in row_launches(members):
        _scatter[(triton.cdiv(count, block), number)](
            grad_RP, member_R, frozen_R.view(torch.uint8), out, first, rows, count,
            grad_RP.stride(0), ROWS=ROWS, BLOCK=block, num_warps=4,
        )  # fmt: skip
    return out
