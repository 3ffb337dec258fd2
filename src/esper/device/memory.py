"""How much memory is free, and how to keep freed host memory for the next batch.

Activations are a few megabytes each. By default glibc returns blocks of that size to the kernel
when they are freed, and the kernel zeroes every page again for the next batch, which took a third
of a train batch's time (docs/performance.md).
"""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from pathlib import Path
from typing import Final

import torch

_CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
_MEMORY: Final = Path("/proc/meminfo")
_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_THRESHOLD: Final = -3
"""mallopt parameters (malloc.h)."""

MAX_KEPT_BLOCK: Final = 2**27
"""Blocks larger than this many bytes are returned when freed: data sets, not activations."""
MAX_KEPT_BYTES: Final = 2**31 - 1
"""Free bytes kept at the end of the heap; the rest is returned."""
GROWTH: Final = 2**26
"""Minimum growth of the heap in bytes."""


@lru_cache(maxsize=1)
def keep_freed_memory() -> bool:
    """Set the malloc options of this process; False if the C library has none (not glibc)."""
    try:
        settings = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    wanted = (
        (_MMAP_THRESHOLD, MAX_KEPT_BLOCK),
        (_TRIM_THRESHOLD, MAX_KEPT_BYTES),
        (_TOP_PAD, GROWTH),
    )
    taken = [settings(name, value) == 1 for name, value in wanted]
    return all(taken)


def free_bytes(device: torch.device) -> float:
    """Free memory in bytes; infinite if unknown."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(free + unused)
    return min(_free_system_memory(), _cgroup_limit())


def _free_system_memory() -> float:
    try:
        rows = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
        return sum(1024.0 * int(rows[name].split()[0]) for name in ("MemAvailable", "SwapFree"))
    except (OSError, KeyError, ValueError):  # not Linux
        return math.inf


def _cgroup_limit() -> float:
    try:
        return float(_CGROUP_LIMIT.read_text())  # "max" (no limit) raises ValueError
    except (OSError, ValueError):
        return math.inf
