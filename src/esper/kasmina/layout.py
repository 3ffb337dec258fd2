"""How images lie in memory: channel by channel as torch has it, or channels last.

On a CPU, torch's max-pool and the gradients of its convolutions are faster where the channels of a
place are neighbours (docs/performance.md). The loop executor lays large images out so; torch's
operations and ours hand the layout on. Values and shapes are the same in both.
"""

from __future__ import annotations

import torch
from torch import Tensor


def padded_channels(channels: int) -> int:
    """Places of a pixel with so many channels: three get four, so that a pixel is one load."""
    return 4 if channels == 3 else channels


def channels_last(x: Tensor) -> Tensor:
    """The images `[..., C, H, W]`, laid out channels last."""
    return x.movedim(-3, -1).contiguous().movedim(-1, -3)


def lies_channels_last(x: object) -> bool:
    """Whether a batch `[B, C, H, W]` lies so on a CPU, without gaps; under vmap the answer is no.

    Nor does what stands for a tensor while a graph is traced.
    """
    if not isinstance(x, Tensor):
        return False
    if x.device.type != "cpu" or x.ndim != 4 or x.shape[1] == 1 or x.stride(1) != 1:
        return False
    return not under_vmap(x) and x.is_contiguous(memory_format=torch.channels_last)


def under_vmap(x: Tensor) -> bool:
    """Whether x stands for the tensors of many members: torch does not tell their layout then."""
    return torch._C._functorch.is_batchedtensor(x)
