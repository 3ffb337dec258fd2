"""How images lie in memory: channel by channel as torch has it, or channels last.

On a CPU, torch's max-pool and the gradients of its convolutions are faster where the channels of a
place are neighbours (docs/performance.md). The loop executor lays large images out so; torch's
operations and ours hand the layout on. Values and shapes are the same in both.
"""

from __future__ import annotations

from torch import Tensor


def channels_last(x: Tensor) -> Tensor:
    """The images `[..., C, H, W]`, laid out channels last."""
    return x.movedim(-3, -1).contiguous().movedim(-1, -3)


def lies_channels_last(x: Tensor) -> bool:
    """Whether a batch `[B, C, H, W]` lies so on a CPU, without gaps.

    By strides, because under vmap torch answers no question about layouts.
    """
    if x.device.type != "cpu" or x.ndim != 4 or x.shape[1] == 1:
        return False
    _, channels, height, width = x.shape
    return x.stride() == (channels * height * width, 1, width * channels, channels)
