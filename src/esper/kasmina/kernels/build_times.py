"""What did it take to build kernels? Counted by Triton's own clock, and by torch.compile's.

A kernel of ours is compiled at its first use for each layout and type; Triton keeps it on disk, so
the next process only fetches it. What is counted is what Triton reports: from our Python to machine
code. Its C launcher and the loading come on top.

Both are other people's hooks: where they are missing or have changed, a line says so, and the run
goes on. Nothing here waits for a device.
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
    """Triton's kernels that this process made ready while someone listened."""

    built: int = 0
    """Compiled anew."""
    build_seconds: float = 0.0
    """What that took."""
    fetched: int = 0
    """Found compiled, in Triton's cache on disk."""
    fetch_seconds: float = 0.0
    """What that took."""
    problem: str = ""
    """Why they are not counted; empty where they are."""

    def note(self, record: dict[str, Any]) -> None:
        """Count one kernel by what Triton tells of it; one that cannot be read ends the count."""
        try:
            seconds, fetched = record["times"].total / 1e6, bool(record["cache_hit"])
        except (KeyError, AttributeError, TypeError) as error:
            self.problem = f"this Triton tells of a build in other words: {error}"
            return
        if fetched:
            self.fetched += 1
            self.fetch_seconds += seconds
        else:
            self.built += 1
            self.build_seconds += seconds

    def line(self) -> str:
        """In words."""
        if self.problem:
            return f"not counted ({self.problem})"
        return (
            f"{self.built} built in {self.build_seconds:.1f} s, "
            f"{self.fetched} from Triton's cache in {self.fetch_seconds:.2f} s"
        )


@contextmanager
def count_builds(device: torch.device) -> Iterator[KernelBuilds]:
    """What is built inside; whoever listened before is told as well, and listens on afterwards."""
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
    """Where Triton keeps its listener to builds; None, and why, where there is none."""
    if device.type != "cuda":
        builds.problem = f"kernels are built for CUDA devices, this is {device}"
        return None
    if not can_build_kernels():
        builds.problem = "they need triton and a C compiler"
        return None
    return find_knobs(builds)


def find_knobs(builds: KernelBuilds) -> Any | None:
    """Triton's settings of compilation; None, and why, where they know no listener."""
    try:
        from triton import knobs

        _ = knobs.compilation.listener
    except (ImportError, AttributeError) as error:
        builds.problem = f"this Triton has no listener to builds: {error}"
        return None
    return knobs.compilation


class _Both:
    """A listener that counts, and hands on to the one before it."""

    def __init__(self, builds: KernelBuilds, before: Listener | None) -> None:
        self._builds, self._before = builds, before

    def __call__(self, **record: Any) -> None:
        self._builds.note(record)
        if self._before is not None:
            self._before(**record)


def compile_seconds() -> float | None:
    """What torch.compile took so far in this process; None where this torch does not tell."""
    try:
        from torch._dynamo.utils import calculate_time_spent

        return float(calculate_time_spent()["total_wall_time"])
    except (ImportError, KeyError, TypeError, ValueError):
        return None
