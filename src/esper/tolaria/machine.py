"""What a command computes on: the device it was asked for, in words."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Final

import torch

from esper.tolaria.runtime import CUBLAS_EXACT, CUBLAS_SETTING

_CPU_INFO: Final = Path("/proc/cpuinfo")
_NVIDIA_DRIVER: Final = Path("/sys/module/nvidia/version")


def describe(device: torch.device) -> dict[str, str]:
    """What belongs beside every number that was measured."""
    return {
        "device": f"{device} ({_device_name(device)})",
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
    } | _driver(device)


def ask_for_exact_sums() -> None:
    """Tell cuBLAS, before it is first used, to take the same path always: what `exact` needs."""
    os.environ.setdefault(CUBLAS_SETTING, CUBLAS_EXACT[0])


def wait_for(device: torch.device) -> None:
    """Until the device has done all it was asked for: to time something, never in a step."""
    if device.type == "cuda":
        # SYNC: what times steps waits between them; no step calls this.
        torch.cuda.synchronize(device)


def _driver(device: torch.device) -> dict[str, str]:
    """Driver and CUDA of a GPU; nothing on a CPU."""
    if device.type != "cuda":
        return {}
    known = _NVIDIA_DRIVER.exists()
    driver = _NVIDIA_DRIVER.read_text().strip() if known else "unknown"
    return {"driver": driver, "cuda": str(torch.version.cuda)}


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    lines = _CPU_INFO.read_text().splitlines() if _CPU_INFO.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
