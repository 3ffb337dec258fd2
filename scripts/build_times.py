"""Count kernel builds and their time, as reported by Triton.

A kernel is compiled at its first use for each layout and type; Triton caches it on disk, so that
the next process only loads it. The time covers Triton's pipeline from Python to machine code,
without the C launcher and loading. Nothing here synchronises the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from esper.device.triton_support import can_build_kernels


@dataclass(slots=True)
class KernelBuilds:
    """Triton kernels prepared by this process while counting."""

    built: int = 0
    """Compiled."""
    build_seconds: float = 0.0
    """What that took."""
    fetched: int = 0
    """Loaded from Triton's cache on disk."""
    fetch_seconds: float = 0.0
    """What that took."""
    problem: str = ""
    """Why builds are not counted; empty if they are."""

    def note(self, record: dict[str, Any]) -> None:
        """Count one kernel from Triton's record."""
        seconds = record["times"].total / 1e6
        if record["cache_hit"]:
            self.fetched += 1
            self.fetch_seconds += seconds
        else:
            self.built += 1
            self.build_seconds += seconds

    def line(self) -> str:
        """Format as one line."""
        if self.problem:
            return f"not counted ({self.problem})"
        return (
            f"{self.built} built in {self.build_seconds:.1f} s, "
            f"{self.fetched} from Triton's cache in {self.fetch_seconds:.2f} s"
        )


@contextmanager
def count_builds(device: torch.device) -> Iterator[KernelBuilds]:
    """Count the builds inside the block; a previous listener is still called, and restored."""
    builds = KernelBuilds()
    if device.type != "cuda":
        builds.problem = f"kernels are built for CUDA devices, this is {device}"
    elif not can_build_kernels():
        builds.problem = "they need triton and a C compiler"
    if builds.problem:
        yield builds
        return
    from triton import knobs

    before = knobs.compilation.listener

    def note(**record: Any) -> None:
        builds.note(record)
        if before is not None:
            before(**record)

    knobs.compilation.listener = note
    try:
        yield builds
    finally:
        knobs.compilation.listener = before
