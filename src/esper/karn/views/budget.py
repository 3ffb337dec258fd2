"""What a run has spent of what it may spend."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from esper.karn.views.damage import reader
from esper.karn.views.summary import run_summary


@dataclass(frozen=True, slots=True)
class Budget:
    """Progress of a run, and how long the rest takes at this pace."""

    spent: float
    total: float | None
    """None: not known."""
    unit: str
    """`rounds`, `host runs` or `minutes` (grow), `policies`, `contexts`."""
    seconds: float | None
    """Time so far."""
    seconds_left: float | None
    """None: not known, or it does not run."""


@reader
def read_budget(run: Path) -> Budget:
    """Budget of a run of any kind."""
    found = run_summary(run)
    left = None
    if found.pace is not None and found.total and found.done < found.total:
        left = found.pace * (found.total - found.done)
    return Budget(found.done, found.total, found.unit, found.seconds, left)
