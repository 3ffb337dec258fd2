"""Which device, and what it is given: host values (without waiting on a GPU), whose kernels."""

from __future__ import annotations

import importlib.util
import os
import shutil
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.leyline.errors import EsperError


def parse_device(device: str | torch.device) -> torch.device:
    """The device a user named, checked to be there: `cpu`, `cuda`, `cuda:1`, or `auto`."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    named = device if isinstance(device, str) else str(device)
    try:
        found = torch.device(named)
    except RuntimeError:
        hint = "did you mean 'cuda'? " if named.startswith(("gpu", "GPU", "CUDA", "nvidia")) else ""
        raise EsperError(
            f"device {named!r}: {hint}choose cpu, cuda, cuda:<number> or auto"
        ) from None
    if found.type == "cuda":
        return validate_cuda_device(found)
    if found.type != "cpu":
        raise EsperError(f"device {named!r}: Esper runs on cpu and cuda")
    return found


def validate_cuda_device(device: torch.device) -> torch.device:
    """A CUDA device that is there, or an error that says what is."""
    if not torch.cuda.is_available():
        built = "none is visible" if torch.version.cuda else "this torch is built without CUDA"
        raise EsperError(f"device {str(device)!r}: no CUDA device ({built}); use cpu")
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise EsperError(f"device {str(device)!r}: {count} CUDA devices are here, 0 to {count - 1}")
    return device


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
