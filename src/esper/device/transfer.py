"""Copy all device measurements of a step to the host at once.

Named tensors are packed into one vector, copied once and split again.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from esper.leyline.arrays import Doubles


def fetch(parts: Mapping[str, Tensor]) -> dict[str, Doubles]:
    """Return host copies as float64 (exact for float32 and for counts below 2**53)."""
    flat = torch.cat([part.detach().reshape(-1).to(torch.float64) for part in parts.values()])
    host = flat.cpu().numpy()  # SYNC: transfer 1, the one copy of a step's measurements
    out: dict[str, Doubles] = {}
    start = 0
    for name, part in parts.items():
        out[name] = host[start : start + part.numel()].reshape(part.shape)
        start += part.numel()
    return out
