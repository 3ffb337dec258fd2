"""Can our Triton kernels run here, and on this tensor?"""

from __future__ import annotations

import importlib.util
import os
import shutil
from functools import cache

import torch
from torch import Tensor


def takes_kernels(tensor: Tensor) -> bool:
    """Do our own kernels run on it? On a CUDA device they do; elsewhere torch's do the work."""
    return tensor.is_cuda and can_build_kernels() and not torch.compiler.is_compiling()


@cache
def can_build_kernels() -> bool:
    """Triton (which comes with torch for CUDA) is there, and the C compiler that it asks for."""
    compiler = os.environ.get("CC") or shutil.which("clang") or shutil.which("gcc")
    return compiler is not None and importlib.util.find_spec("triton") is not None
