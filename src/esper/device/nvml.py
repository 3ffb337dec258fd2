"""Utilisation of a GPU as the driver's own library (NVML) reports it; needs no Python package."""

from __future__ import annotations

import ctypes
import math
from functools import cache
from typing import Final

import torch

_LIBRARY: Final = "libnvidia-ml.so.1"
_SUCCESS: Final = 0


class _Rates(ctypes.Structure):
    """`nvmlUtilization_t`: percent of the driver's last sample, a sixth of a second to a second."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def gpu_utilization(device: torch.device) -> float:
    """Share of the last moments in which a GPU computed, 0..1; NaN if the driver does not say.

    Does not wait for the device.
    """
    if device.type != "cuda":
        return math.nan
    index = torch.cuda.current_device() if device.index is None else device.index
    library, handle = _library(), _handle(index)
    if library is None or handle is None:
        return math.nan
    rates = _Rates()
    if library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) != _SUCCESS:
        return math.nan  # a slice of a GPU (MIG) has none
    return float(rates.gpu) / 100.0


@cache
def _library() -> ctypes.CDLL | None:
    """NVML, initialised; None where there is none."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    return library if library.nvmlInit_v2() == _SUCCESS else None


@cache
def _handle(index: int) -> ctypes.c_void_p | None:
    """NVML's handle of torch's device; numbers differ under CUDA_VISIBLE_DEVICES, so by UUID."""
    library = _library()
    if library is None:
        return None
    name = f"GPU-{torch.cuda.get_device_properties(index).uuid}".encode()
    handle = ctypes.c_void_p()
    found = library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle))
    return handle if found == _SUCCESS else None
