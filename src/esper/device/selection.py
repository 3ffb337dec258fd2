"""Parse and validate device names."""

from __future__ import annotations

import torch

from esper.leyline.errors import EsperError


def parse_device(device: str | torch.device) -> torch.device:
    """Parse `cpu`, `cuda`, `cuda:1` or `auto`; raises if the device is not available."""
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
    """Return the CUDA device; raises with the available ones if there is no such device."""
    if not torch.cuda.is_available():
        built = "none is visible" if torch.version.cuda else "this torch is built without CUDA"
        raise EsperError(f"device {str(device)!r}: no CUDA device ({built}); use cpu")
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise EsperError(f"device {str(device)!r}: {count} CUDA devices are here, 0 to {count - 1}")
    return device
