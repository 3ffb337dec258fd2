"""Sums of what the parts of a row leave (weight gradients, gates, scales), in a fixed order.

Torch's reduction takes one thread block per few columns, which is slow for the few columns and many
parts that our kernels leave.

Shape letters: R rows, K parts, N numbers of a part.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.ops.kernels.layout import launched, next_power, row_launches

TILE: Final = 4096
"""Numbers that a program holds."""
COLUMNS: Final = 64
"""Columns of a program at most: the more, the longer each thread's sum."""


@triton.jit
def _add_parts(
    partial, out, first, parts, count, K: tl.constexpr, N: tl.constexpr, TURNS: tl.constexpr
):
    row = (first + tl.program_id(1)).to(tl.int64)
    n = tl.program_id(0) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    total = tl.zeros((K, N), tl.float32)
    for turn in range(TURNS):
        part = turn * K + k
        mask = (part < parts)[:, None] & (n < count)[None, :]
        place = (row * parts + part[:, None]) * count + n[None, :]
        total += tl.load(partial + place, mask=mask, other=0.0)
    tl.store(out + row * count + n, tl.sum(total, axis=0), mask=n < count)


@launched
def add_parts(partial: Tensor) -> Tensor:
    """Return `[R, ...]`, the sums of `[R, K, ...]` over K; a row's depend only on that row."""
    rows, parts, *shape = partial.shape
    if parts == 1:
        return partial[:, 0]
    partial = partial.contiguous()
    out = torch.empty((rows, *shape), dtype=torch.float32, device=partial.device)
    count = out[0].numel()
    columns = min(COLUMNS, next_power(count))
    at_once = min(next_power(parts), TILE // columns)
    for first, number in row_launches(rows):
        _add_parts[(triton.cdiv(count, columns), number)](
            partial, out, first, parts, count, K=at_once, N=columns,
            TURNS=triton.cdiv(parts, at_once), num_warps=4,
        )  # fmt: skip
    return out
