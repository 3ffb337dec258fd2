"""Dispatch of 2x2 max pooling to torch, to slices on a CPU, or to our kernel."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from esper.kasmina.ops import fused
from esper.kasmina.ops.pooling_cpu import can_pool_in_slices, max_pool_in_slices


def max_pool2d(x: Tensor, many_rows: int = 0) -> Tensor:
    """Pool 2x2 windows; the last one is cut off at an odd edge.

    `many_rows`: the samples are those of so many rows, one row after the other.
    """
    half = fused.half_type(x)
    if half is not None and x.dtype == half and x.ndim == 4 and fused.image_fits(*x.shape[1:]):
        from esper.kasmina.ops.kernels.pooling import max_pool

        if many_rows:  # some of them may be skipped
            return max_pool(x.view(many_rows, -1, *x.shape[1:])).flatten(0, 1)
        return max_pool(x)
    if can_pool_in_slices(x, many_rows > 0):
        return max_pool_in_slices(x)
    return F.max_pool2d(x, 2, ceil_mode=True)
