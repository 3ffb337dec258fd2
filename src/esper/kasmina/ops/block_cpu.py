"""Convolution, group norm, ReLU and max pool on a CPU as one operation (`block_cpu.c`).

Torch computes a block in five passes over memory, and its convolutions of few channels take twice
as long as their arithmetic (docs/performance.md). Here one image at a time goes through the whole
block. Compiled once for each kernel size and number of channels, for the vectors of this CPU: NEON,
AVX2 or AVX-512.

Shape letters: B batch, C channels in, O channels out, G groups, H W.
"""

from __future__ import annotations

import ctypes
import logging
import math
import sys
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from esper.kasmina.ops.c_libraries import find_compiler, load_library
from esper.kasmina.ops.convolution_cpu import ON_ARM
from esper.kasmina.ops.layout import is_channels_last
from esper.leyline.errors import EsperError

logger = logging.getLogger(__name__)

SOURCE: Final = Path(__file__).with_name("block_cpu.c")
MIN_LANES: Final = 4
"""Numbers in the shortest vector: channels that are written come in such groups."""
X86_OPTIONS: Final = {
    "AVX2": ("-mavx2", "-mfma"),
    "AVX512": ("-mavx2", "-mfma", "-mavx512f", "-mavx512vl", "-mavx512dq"),
}
"""What the compiler may use, by what torch calls the CPU."""
MAX_CHANNELS: Final = 32
"""With 64, torch's convolutions are as fast."""
MAX_KERNEL: Final = 5
FORWARD: Final = 0
BACKWARD: Final = 1
Given = tuple[Tensor, Tensor, Tensor, Tensor]
"""Images, weights, and scale and shift of the norm."""


class Steps(NamedTuple):
    """What a block does after its convolution."""

    groups: int
    """Of the norm."""
    relu: bool
    pool: bool


class _Block(ctypes.Structure):
    """`Block` in `block_cpu.c`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "weight", "scale", "shift")),
        *((name, ctypes.c_void_p) for name in ("convolved", "statistics", "out", "grad")),
        *((f"grad_{name}", ctypes.c_void_p) for name in ("x", "weight", "scale", "shift")),
        *((name, ctypes.c_int64) for name in ("batch", "height", "width", "groups")),
        *((name, ctypes.c_int64) for name in ("relu", "pool", "threads")),
    )


@cache
def unsupported_reason() -> str | None:
    """Return why blocks cannot be computed as one operation on this machine; None if they can."""
    if sys.platform != "linux":
        return "they are for Linux"
    if not ON_ARM and _capability() not in X86_OPTIONS:
        return f"they need ARM, or x86 with AVX2 (torch says {_capability()})"
    return "no C compiler" if find_compiler() is None else None


def fits(x: Tensor, weight: Tensor, steps: Steps) -> bool:
    """Whether there is such a block for these images and weights."""
    if not all(type(part) in (Tensor, nn.Parameter) for part in (x, weight)):
        return False
    if x.dtype != torch.float32 or weight.dtype != torch.float32 or not is_channels_last(x):
        return False
    if torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return False
    if any(map(torch._C._functorch.is_functorch_wrapped_tensor, (x, weight))):
        return False
    outs, channels, side, other = weight.shape
    if max(outs, channels) > MAX_CHANNELS or not 1 < side == other <= MAX_KERNEL:
        return False
    if outs % MIN_LANES or outs % steps.groups:
        return False
    if channels % MIN_LANES and x.requires_grad and torch.is_grad_enabled():
        return False
    if steps.pool and (x.shape[2] % 2 or x.shape[3] % 2):
        return False
    return _functions(side, channels, outs) is not None


def conv_norm(x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, steps: Steps) -> Tensor:
    """Convolve, normalise, then ReLU and 2x2 max pool if asked for; `fits` must hold."""
    given = x, weight.contiguous(), scale.contiguous(), shift.contiguous()
    if torch.is_grad_enabled() and any(part.requires_grad for part in given):
        out: Tensor = _ConvNorm.apply(*given, steps)  # type: ignore[no-untyped-call]
        return out
    return _forward(given, steps, keep=False)[0]


class _ConvNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, steps: Steps
    ) -> Tensor:
        out, *kept = _forward((x, weight, scale, shift), steps, keep=True)
        ctx.save_for_backward(x, weight, scale, shift, *kept)
        ctx.steps = steps
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale, shift, *kept = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        grad = grad.contiguous(memory_format=torch.channels_last)
        gradients = (
            torch.empty_like(x) if needs_x else None,
            torch.empty_like(weight) if needs_weight else None,
            torch.empty_like(scale),
            torch.empty_like(shift),
        )
        given = x, weight, scale, shift
        _run(BACKWARD, given, (*kept, None, grad, *gradients), ctx.steps)
        return *gradients, None


def _forward(given: Given, steps: Steps, keep: bool) -> tuple[Tensor, ...]:
    """Return the output and, if asked for, what the backward pass needs."""
    batch, _, height, width = given[0].shape
    outs, shrink = len(given[1]), 2 if steps.pool else 1
    shape = batch, outs, height // shrink, width // shrink
    new = partial(torch.empty, dtype=torch.float32)
    out = new(shape, memory_format=torch.channels_last)
    kept: tuple[Tensor, ...] = ()
    if keep:
        kept = new((batch, height, width, outs)), new((batch, steps.groups, 2))
    _run(FORWARD, given, (*(kept or (None, None)), out, *[None] * 5), steps)
    return out, *kept


def _run(which: int, given: Given, others: Sequence[Tensor | None], steps: Steps) -> None:
    (batch, _, height, width), (outs, channels, side, _) = given[0].shape, given[1].shape
    functions = _functions(side, channels, outs)
    assert functions is not None, "checked by `fits`"
    addresses = [None if part is None else part.data_ptr() for part in (*given, *others)]
    block = _Block(*addresses, batch, height, width, *steps, torch.get_num_threads())
    if functions[which](ctypes.byref(block)):
        raise MemoryError("no memory for a convolution block")


@cache
def _functions(side: int, channels: int, outs: int) -> tuple[Any, Any] | None:
    """Return forward and backward for a kernel; None, with a warning, if they cannot be built."""
    constants = {"SIDE": side, "CIN": channels, "COUT": outs, "LANES": _lanes(channels, outs)}
    try:
        library = load_library(SOURCE, constants, X86_OPTIONS.get(_capability(), ()))
    except (EsperError, OSError) as error:
        logger.warning("blocks of %d to %d channels by torch: %s", channels, outs, error)
        return None
    return library.block_forward, library.block_backward


def _capability() -> str:
    """What torch's own kernels are chosen by; $ATEN_CPU_CAPABILITY lowers it."""
    return torch.backends.cpu.get_cpu_capability()


def _lanes(channels: int, outs: int) -> int:
    """Return the longest vector of this CPU that divides what is written, forward and backward."""
    longest = {"AVX2": 8, "AVX512": 16}.get(_capability(), MIN_LANES)
    written = outs if channels % MIN_LANES else math.gcd(outs, channels)
    return math.gcd(longest, written)
