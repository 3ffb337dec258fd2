"""When and how our own kernels take over from torch's: on a GPU, in half precision.

Every door here has a way of torch's for everything else; the modules that call it need not know.

Shape letters: R rows, B batch, C channels, H W.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

_stock: ContextVar[bool] = ContextVar("stock_kernels", default=False)


@contextmanager
def stock_kernels(wanted: bool = True) -> Iterator[None]:
    """Within it torch's own kernels are used, whatever the device."""
    token = _stock.set(wanted)
    try:
        yield
    finally:
        _stock.reset(token)


def half_type(x: Tensor) -> torch.dtype | None:
    """The type our kernels would compute `x` in; None where torch's are used."""
    if _stock.get() or not isinstance(x, Tensor):
        return None
    kind = x.device.type
    if kind != "cuda" and not interpreted():
        return None
    if not torch.is_autocast_enabled(kind) or torch.compiler.is_compiling() or not has_triton():
        return None
    dtype = torch.get_autocast_dtype(kind)
    return dtype if dtype in (torch.bfloat16, torch.float16) else None


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Whether triton is there; torch brings it along where it is built for CUDA."""
    return importlib.util.find_spec("triton") is not None


@lru_cache(maxsize=1)
def interpreted() -> bool:
    """Whether triton was told to run kernels on the CPU, step by step: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def conv2d(x: Tensor, weight: Tensor, groups: int, dtype: torch.dtype) -> Tensor | None:
    """A convolution of stride 1 that keeps the size; None where no kernel of ours fits."""
    out_channels, group_channels, height, width = weight.shape
    channels = x.shape[1]
    alone = group_channels == 1 and groups == channels == out_channels
    if height != width or max(channels, out_channels) > 256 or not (groups == 1 or alone):
        return None
    from esper.kasmina.kernels.convolution import Convolution
    from esper.kasmina.kernels.depthwise import DepthwiseConvolution

    kind = Convolution if groups == 1 else DepthwiseConvolution
    out: Tensor = kind.apply(prepared(x, dtype), weight, dtype)
    return out


def prepared(x: Tensor, dtype: torch.dtype) -> Tensor:
    """An input `[B, C, H, W]` in the type and layout of our kernels."""
    if x.dtype == dtype:
        return x
    from esper.kasmina.kernels.layout import Prepared

    out: Tensor = Prepared.apply(x, dtype)
    return out


def norm_fits(x: Tensor, groups: int) -> bool:
    """Whether there is a kernel for the group norm of `x`."""
    if half_type(x) != x.dtype:
        return False
    from esper.kasmina.kernels.normalise import supported

    return supported(x, groups)


def group_norm(x: Tensor, groups: int, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    """Group norm, and ReLU where asked, of what fits."""
    from esper.kasmina.kernels.normalise import Normalise

    out: Tensor = Normalise.apply(x, weight, bias, groups, relu)[0]
    return out


def max_pool(x: Tensor) -> Tensor:
    """The largest of each 2x2 square; a last odd row or column pools with what there is."""
    if x.ndim != 4 or half_type(x) != x.dtype:
        return F.max_pool2d(x, 2, ceil_mode=True)
    from esper.kasmina.kernels.pooling import MaxPool

    out: Tensor = MaxPool.apply(x)
    return out
