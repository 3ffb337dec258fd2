"""How measurements reach the host: all of a step's in one copy.

Everything on the device that the host needs to know is handed over by name, packed into one
vector, copied once and cut up again.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from esper.leyline.arrays import Doubles


def fetch(parts: Mapping[str, Tensor]) -> dict[str, Doubles]:
    """Host copies of device tensors, as float64 (exact for float32 and for counts below 2**53)."""
    flat = torch.cat([part.detach().reshape(-1).to(torch.float64) for part in parts.values()])
    host = flat.cpu().numpy()  # SYNC: transfer 1, the one copy of a step's measurements
    out: dict[str, Doubles] = {}
    start = 0
    for name, part in parts.items():
        out[name] = host[start : start + part.numel()].reshape(part.shape)
        start += part.numel()
    return out
