"""Cores that this process may use, and torch's threads on them for a while."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch

_CGROUPS: Final = Path("/sys/fs/cgroup")


def cores() -> int:
    """Cores that this process may use: of its affinity, no more than the quota of a container."""
    known = hasattr(os, "sched_getaffinity")  # not on macOS
    mine = len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1
    return max(1, math.floor(min(mine, _quota())))


def _quota() -> float:
    """Seconds of computing per second that a cgroup allows, version 2 or 1; infinite: any."""
    both = _numbers(_CGROUPS / "cpu.max")
    if not both:
        names = "cpu.cfs_quota_us", "cpu.cfs_period_us"
        both = [number for name in names for number in _numbers(_CGROUPS / "cpu" / name)]
    if len(both) != 2 or min(both) <= 0:  # -1: no limit
        return math.inf
    return both[0] / both[1]


def _numbers(path: Path) -> list[int]:
    """The numbers of a line; none, if one of its words is not, as "max" is not."""
    try:
        return [int(word) for word in path.read_text().split()]
    except (OSError, ValueError):
        return []


@contextlib.contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Compute with so many threads; some operations round differently with another number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
