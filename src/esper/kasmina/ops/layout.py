"""Memory layout of images: contiguous (NCHW) or channels last.

On a CPU, torch's max pool and convolution gradients are faster with channels last
(docs/performance.md). The loop executor uses it for large images; torch's operations and ours
preserve it. Values and shapes do not depend on the layout.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def padded_channels(channels: int) -> int:
    """Return the stored channels of a pixel: three become four, so that a pixel is one load."""
    return 4 if channels == 3 else channels


def channels_last(x: Tensor) -> Tensor:
    """Return the images `[..., C, H, W]` in channels-last layout."""
    return x.movedim(-3, -1).contiguous().movedim(-1, -3)


def is_channels_last(x: object) -> bool:
    """Whether a batch `[B, C, H, W]` on a CPU is dense and channels last.

    False under vmap, and for the proxies of a tracer.
    """
    if not isinstance(x, Tensor):
        return False
    if x.device.type != "cpu" or x.ndim != 4 or x.shape[1] == 1 or x.stride(1) != 1:
        return False
    return not under_vmap(x) and x.is_contiguous(memory_format=torch.channels_last)


def under_vmap(x: Tensor) -> bool:
    """Whether x is a vmapped tensor, whose layout torch does not expose."""
    return torch._C._functorch.is_batchedtensor(x)


def with_strides(values: Tensor, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Reinterpret memory as a tensor that is not a view.

    Autograd forbids in-place operations (such as a ReLU) on views returned by a function.
    """
    out = values.new_empty(0)
    out.set_(values.untyped_storage(), 0, shape, stride)
    return out
