"""Whether our Triton kernels can run here, and on a given tensor."""

from __future__ import annotations

import importlib.util
import os
import shutil
from functools import cache

import torch
from torch import Tensor


def can_use_kernels(tensor: Tensor) -> bool:
    """Whether our kernels apply to the tensor: on CUDA they do, elsewhere torch's own are used."""
    return tensor.is_cuda and can_build_kernels() and not torch.compiler.is_compiling()


@cache
def can_build_kernels() -> bool:
    """Whether Triton (part of torch for CUDA) and the C compiler it needs are installed."""
    compiler = os.environ.get("CC") or shutil.which("clang") or shutil.which("gcc")
    return compiler is not None and importlib.util.find_spec("triton") is not None
