"""How host values reach the device without waiting for it."""

from __future__ import annotations

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
