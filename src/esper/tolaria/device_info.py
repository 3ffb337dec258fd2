"""Description of the device and software versions, for reports and benchmarks."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path
from typing import Final

import torch

_CPU_INFO: Final = Path("/proc/cpuinfo")
_NVIDIA_DRIVER: Final = Path("/sys/module/nvidia/version")


def describe_device(device: torch.device) -> dict[str, str]:
    """Return the device name, CPU cores and threads, and versions, as strings."""
    return {
        "device": f"{device} ({_device_name(device)})",
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
    } | _driver(device)


def _driver(device: torch.device) -> dict[str, str]:
    """Driver and CUDA version of a GPU; empty for a CPU."""
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


def gpu_memory(device: torch.device) -> float:
    """Most bytes that this process's tensors took on a GPU so far; NaN on a CPU."""
    if device.type != "cuda":
        return math.nan
    return float(torch.cuda.max_memory_allocated(device))
