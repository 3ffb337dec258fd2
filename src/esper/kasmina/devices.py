"""What a device is given: host values (pinned and without waiting on a GPU), and whose kernels."""

from __future__ import annotations

import importlib.util
import os
import shutil
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def upload(array: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """A copy of a host array on the device."""
    return send(torch.from_numpy(np.array(array)), device)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on the device; itself where it is there already."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def takes_kernels(tensor: Tensor) -> bool:
    """Do our own kernels run on it? On a CUDA device they do; elsewhere torch's do the work."""
    return tensor.is_cuda and can_build_kernels() and not torch.compiler.is_compiling()


@cache
def can_build_kernels() -> bool:
    """Triton (which comes with torch for CUDA) is there, and the C compiler that it asks for."""
    compiler = os.environ.get("CC") or shutil.which("clang") or shutil.which("gcc")
    return compiler is not None and importlib.util.find_spec("triton") is not None
