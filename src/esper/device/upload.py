"""Copy host values to the device without synchronising."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def upload(array: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """Return a copy of a host array on the device."""
    return to_device(torch.from_numpy(np.array(array)), device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on the device; no copy if it is already there."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
