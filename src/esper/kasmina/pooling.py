"""How is max-pooling computed? By torch, in slices on a CPU, or by a kernel of our own."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from esper.kasmina import fused
from esper.kasmina.pooling_cpu import max_pool_in_slices, pools_in_slices


def max_pool2d(x: Tensor, many_rows: bool = False) -> Tensor:
    """What pooling of our modules goes through: 2x2 windows, the last cut off at an odd edge."""
    half = fused.half_type(x)
    if half is not None and x.dtype == half and x.ndim == 4 and fused.image_fits(*x.shape[1:]):
        from esper.kasmina.kernels.pooling import max_pool

        return max_pool(x)
    if pools_in_slices(x, many_rows):
        return max_pool_in_slices(x)
    return F.max_pool2d(x, 2, ceil_mode=True)
