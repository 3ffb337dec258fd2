"""Count kernel builds and their time, as reported by Triton and torch.compile.

A kernel is compiled at its first use for each layout and type; Triton caches it on disk, so that
the next process only loads it. The time covers Triton's pipeline from Python to machine code,
without the C launcher and loading.

Both are third-party hooks: if they are missing or have changed, a message says so and the run
continues. Nothing here synchronises the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from esper.device.triton_support import can_build_kernels

Listener = Callable[..., object]


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
        """Count one kernel from Triton's record; an unreadable one ends the count."""
        try:
            seconds, fetched = record["times"].total / 1e6, bool(record["cache_hit"])
        except (KeyError, AttributeError, TypeError) as error:
            self.problem = f"unknown format of Triton's build record: {error}"
            return
        if fetched:
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
    knobs = _knobs(device, builds)
    if knobs is None:
        yield builds
        return
    before: Listener | None = knobs.listener
    knobs.listener = _Both(builds, before)
    try:
        yield builds
    finally:
        knobs.listener = before


def _knobs(device: torch.device, builds: KernelBuilds) -> Any | None:
    """Return Triton's compilation settings; None, with the reason in `builds`, if unavailable."""
    if device.type != "cuda":
        builds.problem = f"kernels are built for CUDA devices, this is {device}"
        return None
    if not can_build_kernels():
        builds.problem = "they need triton and a C compiler"
        return None
    return find_knobs(builds)


def find_knobs(builds: KernelBuilds) -> Any | None:
    """Return Triton's compilation settings; None, with the reason, if they have no listener."""
    try:
        from triton import knobs

        _ = knobs.compilation.listener
    except (ImportError, AttributeError) as error:
        builds.problem = f"this Triton has no listener to builds: {error}"
        return None
    return knobs.compilation


class _Both:
    """Listener that counts and then calls the previous one."""

    def __init__(self, builds: KernelBuilds, before: Listener | None) -> None:
        self._builds, self._before = builds, before

    def __call__(self, **record: Any) -> None:
        self._builds.note(record)
        if self._before is not None:
            self._before(**record)


def compile_seconds() -> float | None:
    """Return the time of torch.compile in this process; None if torch does not report it."""
    try:
        from torch._dynamo.utils import calculate_time_spent

        return float(calculate_time_spent()["total_wall_time"])
    except (ImportError, KeyError, TypeError, ValueError):
        return None
