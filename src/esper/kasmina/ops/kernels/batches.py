"""Assemble batches on a GPU: gather, flip, crop and normalise in one pass.

Bytes per output element, at least: 1 read (a pixel; 4 for float32 examples) and 4 written (2 for
half precision); 24 more per image for index, random word and target. One program computes all
channels of some pixels, so that channels-last pixels are written at once.

Bits of a word, as in `tolaria.data`: bit 0 flips, 8.. and 24.. shift.

Shape letters: N examples, E members, B batch, C H W.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.ops.kernels.layout import pixel_stride
from esper.kasmina.ops.layout import padded_channels

BLOCK = 1024
"""Approximate number of elements per program."""


@triton.jit
def _gather_kernel(
    examples,
    targets,
    index,
    words,
    mean,
    std,
    x_out,
    targets_out,
    batch,
    index_stride,
    words_stride,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    STEP: tl.constexpr,
    CHANNELS: tl.constexpr,
    FLIP: tl.constexpr,
    PADDING: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    chunk = program % CHUNKS
    image = program // CHUNKS
    member = (image // batch).to(tl.int64)
    place = image % batch
    source = tl.load(index + member * index_stride + place).to(tl.int64)

    offset = chunk * BLOCK + tl.arange(0, BLOCK)
    row = offset // W
    column = offset % W
    if FLIP:
        word = tl.load(words + member * words_stride + place)
        if PADDING > 0:
            row += ((word >> 8) & 0xFFFF).to(tl.int32) % (2 * PADDING + 1) - PADDING
            column += ((word >> 24) & 0xFFFF).to(tl.int32) % (2 * PADDING + 1) - PADDING
        column = tl.where((word & 1) != 0, W - 1 - column, column)
    inside = (row >= 0) & (row < H) & (column >= 0) & (column < W) & (offset < H * W)

    channel = tl.arange(0, CHANNELS)[None, :]
    start = examples + source * (C * H * W) + channel * (H * W)
    mask = inside[:, None] & (channel < C)
    value = tl.load(start + (row * W + column)[:, None], mask=mask, other=0).to(tl.float32)
    spread = tl.load(std + channel, mask=channel < C, other=1.0) + tl.zeros_like(value)
    value = tl.div_rn(value - tl.load(mean + channel, mask=channel < C, other=0.0), spread)
    if STEP > 0:  # channels last; a place beyond the channels holds 0
        target = offset[:, None] * STEP + channel
        wanted = (offset < H * W)[:, None] & (channel < STEP)
        size = H * W * STEP
    else:
        target = channel * (H * W) + offset[:, None]
        wanted = (offset < H * W)[:, None] & (channel < C)
        size = H * W * C
    out = x_out + image.to(tl.int64) * size
    tl.store(out + target, value.to(x_out.dtype.element_ty), mask=wanted)
    first = chunk == 0
    tl.store(targets_out + image, tl.load(targets + source, mask=first), mask=first)


def gather_batch(
    examples_NCHW: Tensor,
    targets_N: Tensor,
    index_EB: Tensor,
    words_EB: Tensor | None,
    mean_C: Tensor,
    std_C: Tensor,
    padding: int = 0,
    dtype: torch.dtype = torch.float32,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return inputs `[E, B, C, H, W]` of type `dtype`, and targets `[E, B]`.

    `words_EB` flips images, and shifts them by up to `padding` pixels each way; None does neither.
    `out`: tensors of those shapes to write to, inputs contiguous or channels last. Rows of
    `index_EB` and `words_EB` may be strided, as in a slice of a larger table.
    """
    members, batch = index_EB.shape
    channels, height, width = examples_NCHW.shape[1:]
    if out is None:
        shape = (members, batch, channels, height, width)
        x_EBCHW = torch.empty(shape, dtype=dtype, device=examples_NCHW.device)
        out = x_EBCHW, targets_N.new_empty(members, batch)
    step = 0 if out[0].is_contiguous() else pixel_stride(out[0])
    if step is None or step > max(channels, padded_channels(channels)):
        raise ValueError(f"a batch cannot be written to strides {out[0].stride()}")
    wide = triton.next_power_of_2(max(step, channels))
    block = min(max(1, BLOCK // wide), triton.next_power_of_2(height * width))
    chunks = triton.cdiv(height * width, block)
    words = index_EB if words_EB is None else words_EB
    with torch.cuda.device_of(examples_NCHW):
        _gather_kernel[(members * batch * chunks,)](
            examples_NCHW,
            targets_N,
            index_EB,
            words,
            mean_C,
            std_C,
            *out,
            batch,
            index_EB.stride(0),
            words.stride(0),
            C=channels,
            H=height,
            W=width,
            STEP=step,
            CHANNELS=wide,
            FLIP=words_EB is not None,
            PADDING=padding,
            CHUNKS=chunks,
            BLOCK=block,
            num_warps=max(1, min(4, block * wide // 256)),
        )
    return out
