"""How is max-pooling computed? By torch, or by a kernel of our own on a GPU."""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.kasmina.devices import takes_kernels

KERNEL_TYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
"""What the kernel can pool."""


def max_pool2d(x: Tensor) -> Tensor:
    """The one door for pooling of our own modules: 2x2 windows, the last cut off at an odd edge."""
    if takes_kernels(x) and x.dtype in KERNEL_TYPES and x.numel():
        from esper.kasmina.kernels.pooling import MaxPool2x2

        return MaxPool2x2.apply(x)  # type: ignore[no-any-return, no-untyped-call]
    return F.max_pool2d(x, 2, ceil_mode=True)
