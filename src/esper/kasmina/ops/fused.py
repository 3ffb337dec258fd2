"""Dispatch to our own kernels: on a GPU in half precision, and whole blocks on a CPU.

Every function here falls back to torch, or asks the caller to.

Shape letters: R rows, B batch, C channels, H W.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from esper.device.triton_support import can_use_kernels
from esper.kasmina.ops import block_cpu
from esper.kasmina.ops.block_cpu import Steps
from esper.kasmina.ops.block_parameters import (
    BlockParameters,
    ExciteParameters,
    NormParameters,
    StepParameters,
)
from esper.kasmina.ops.kernel_scope import current_scope
from esper.kasmina.ops.layout import padded_channels

MAX_KERNEL: Final = 3
"""Largest supported kernel side across channels. An assembler bug made larger ones wrong on an H200
for a few shapes (`kernels.convolution._tile` explains and avoids it); until they are verified there
again, torch's are used (docs/performance.md)."""

MAX_CHANNELS: Final = 64
"""Maximum channels that a convolution of ours reads or writes. Tiles of more spill their sums and
take Triton minutes to compile; torch's kernels are the better ones there."""
MAX_CHANNELS_DEPTHWISE: Final = 256
"""The same of depthwise convolutions."""
MAX_IMAGE: Final = 2**29
"""Maximum elements of an image: offsets inside two of them fit 32 bits."""
MAX_PIXELS: Final = 2**31 - 2**17
"""Maximum pixels of a convolved row: rounded up to tiles for each part of a weight gradient, their
number fits 32 bits."""
MAX_ROW: Final = 2**36
"""Maximum elements of a convolved row: offsets inside a part of a weight gradient, a 64th of the
row, fit 32 bits. All other offsets are 64-bit (`kernels.grids`)."""


def half_type(x: Tensor) -> torch.dtype | None:
    """Return the dtype our kernels would compute `x` in; None if torch's are used."""
    if current_scope().kernels == "torch" or not isinstance(x, Tensor) or not can_use_kernels(x):
        return None
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return None
    dtype = torch.get_autocast_dtype(kind)
    return dtype if dtype in (torch.bfloat16, torch.float16) else None


def image_fits(channels: int, height: int, width: int) -> bool:
    """Whether our kernels can address such an image."""
    return channels * height * width <= MAX_IMAGE


def row_fits(images: int, channels: int, height: int, width: int) -> bool:
    """Whether our kernels can convolve such a row; `channels`: the larger of input and output."""
    pixels = images * height * width
    fits = pixels <= MAX_PIXELS and pixels * channels <= MAX_ROW
    return fits and image_fits(channels, height, width)


def conv2d(x: Tensor, weight: Tensor, groups: int, dtype: torch.dtype) -> Tensor | None:
    """Size-preserving convolution with stride 1; None if none of our kernels applies."""
    out_channels, group_channels, height, width = weight.shape
    channels = x.shape[1]
    depthwise = group_channels == 1 and groups == channels == out_channels
    if height != width or not (groups == 1 or depthwise):
        return None
    if not _convolution_fits(x, max(channels, out_channels), height, depthwise):
        return None
    from esper.kasmina.ops.kernels.convolution import convolve
    from esper.kasmina.ops.kernels.depthwise import convolve_depthwise
    from esper.kasmina.ops.kernels.layout import prepare

    ready = x if x.dtype == dtype else prepare(x, dtype)
    return (convolve if groups == 1 else convolve_depthwise)(ready, weight, dtype)


def _convolution_fits(x: Tensor, most: int, side: int, depthwise: bool) -> bool:
    """Whether we have a kernel for a convolution of images `[..., B, C, H, W]`; `most`: the larger
    number of channels, `depthwise`: every channel is convolved by itself."""
    if most > MAX_CHANNELS_DEPTHWISE if depthwise else most > MAX_CHANNELS or side > MAX_KERNEL:
        return False
    images, channels, *sides = x.shape[-4:]
    return row_fits(images, max(padded_channels(channels), most), *sides)


def input_buffer(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate inputs `[E, B, ...]`; images `[E, B, C, H, W]` in the layout of our kernels."""
    if len(shape) != 5:
        return torch.zeros(*shape, dtype=dtype, device=device)
    members, batch, channels, height, width = shape
    places = padded_channels(channels) if height * width > 1 else channels
    buffer = torch.zeros(members, batch, height, width, places, dtype=dtype, device=device)
    return buffer[..., :channels].permute(0, 1, 4, 2, 3)


def norm_fits(x: Tensor, groups: int) -> bool:
    """Whether we have a kernel for the group norm of `x`."""
    if x.ndim != 4 or half_type(x) != x.dtype:
        return False
    from esper.kasmina.ops.kernels.normalise import supported

    return supported(x, groups)


def group_norm(x: Tensor, groups: int, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    """Group norm, optionally with ReLU; `norm_fits` must hold."""
    from esper.kasmina.ops.kernels.normalise import normalise

    return normalise(x, weight, bias, groups, relu)


def squeeze(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of each channel `[B, C]`, and `x` for `excite`; `norm_fits(x, 1)` must hold.

    Nothing but `excite` may use the second: its gradient is changed in place.
    """
    from esper.kasmina.ops.kernels import excite as kernels

    return kernels.squeeze(x)


def excite(x: Tensor, factor: Tensor) -> Tensor:
    """Return the channels of images times factors `[B, C]`; `norm_fits(x, 1)` must hold."""
    from esper.kasmina.ops.kernels import excite as kernels

    return kernels.excite(x, factor)


def asked_for_blocks() -> bool:
    """Whether blocks (convolution, norm, ReLU) are to be one kernel where there is one."""
    return current_scope().kernels == "fused"


def wants_blocks(x: Tensor) -> bool:
    """Whether blocks of `x` may be computed in one kernel."""
    return asked_for_blocks() and half_type(x) is torch.bfloat16 and x.ndim == 4


def wants_cpu_blocks(x: Tensor) -> bool:
    """Whether blocks of `x`, with their pools, may be computed in one operation on this CPU."""
    if not asked_for_blocks() or not isinstance(x, Tensor) or x.device.type != "cpu":
        return False
    return half_type(x) is None and block_cpu.unsupported_reason() is None


def conv_norm_on_cpu(
    x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, steps: Steps
) -> Tensor | None:
    """A block in one operation; None if there is none for this. `wants_cpu_blocks` must hold."""
    if not block_cpu.fits(x, weight, steps):
        return None
    return block_cpu.conv_norm(x, weight, scale, shift, steps)


def conv_norm(
    x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, groups: int, relu: bool
) -> Tensor | None:
    """Convolution, group norm and ReLU in one kernel; None if there is none for this shape.

    `wants_blocks` must hold.
    """
    from esper.kasmina.ops.kernels import blocks

    if weight.shape[-2:] != (3, 3) or x.shape[0] > blocks.MAX_IMAGES:
        return None
    if blocks.unsupported_reason(blocks.shape_of(x, weight, groups), x.device):
        return None
    return blocks.convolve_normalised(x, weight, scale, shift, groups, relu)


def seeds_fit(h: Tensor, steps: Sequence[StepParameters], styled: bool) -> bool:
    """Whether the steps of seeds can work on rows of `h` `[R, B, C, H, W]` in place.

    `styled`: a kernel of its own blends in what the last step computes.
    """
    if not asked_for_blocks() or half_type(h) is not torch.bfloat16 or h.ndim != 5:
        return False
    from esper.kasmina.ops.kernels.blocks import MAX_IMAGES
    from esper.kasmina.ops.kernels.layout import pixel_stride

    lies = pixel_stride(h) == h.shape[2] and h.data_ptr() % 16 == 0
    if not lies or h.stride(0) != h[0].numel() or h.shape[1] > MAX_IMAGES:
        return False
    adds = None if styled else len(steps) - 1
    return all(_step_fits(h, step, n == 0, n == adds) for n, step in enumerate(steps))


def _step_fits(h: Tensor, step: StepParameters, takes: bool, adds: bool) -> bool:
    """Whether a step of seeds, which takes from rows of `h` or adds to them, can work there."""
    if isinstance(step, NormParameters | ExciteParameters):
        from esper.kasmina.ops.kernels.normalise import supported

        return supported(h, step.groups if isinstance(step, NormParameters) else 1)
    if isinstance(step, BlockParameters):
        from esper.kasmina.ops.kernels.blocks import shape_of, unsupported_reason

        return not unsupported_reason(shape_of(h, step.weight, step.groups), h.device)
    side = step.weight.shape[-1]
    if adds and (step.depthwise or (takes and side > 1)):  # would read what it has changed
        return False
    return _convolution_fits(h, h.shape[2], side, step.depthwise)
