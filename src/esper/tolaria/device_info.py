"""Description of the device and software versions, for reports and benchmarks."""

from __future__ import annotations

import math
import os
import platform
from functools import cache
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


def gpu_utilization(device: str) -> float:
    """Share of the last moments in which a GPU computed, as NVML tells it; NaN if it does not.

    Needs `nvidia-ml-py`. Does not wait for the device.
    """
    if torch.device(device).type != "cuda" or not _has_nvml(device):
        return math.nan
    return torch.cuda.utilization(device) / 100.0


@cache
def _has_nvml(device: str) -> bool:
    """Whether the driver tells the utilisation; asked once, because failing takes long."""
    try:
        torch.cuda.utilization(device)
    except Exception:  # no NVML, an old driver, no rights: each has an error of its own
        return False
    return True
