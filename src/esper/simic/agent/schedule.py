"""Linear schedules of PPO settings, counted in PPO updates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from esper.leyline.errors import EsperError

WHOLE_RUN: Final = "run"
"""Value of `Schedule.steps` for all updates of the run."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Linear from `start` to `end` over `steps` updates, then constant.

    >>> Schedule(0.01, 0.0, steps=10).at(5)
    0.005
    >>> Schedule(0.01, 0.0, steps="run").at(5, run_updates=20)
    0.0075
    """

    start: float
    """Value at the first update."""
    end: float = 0.0
    """Value from update `steps` on; ignored if `steps` is 0."""
    steps: int | Literal["run"] = 0
    """Updates from `start` to `end`; 0: constant `start`; "run": all updates of the run."""

    def __post_init__(self) -> None:
        if isinstance(self.steps, str) and self.steps != WHOLE_RUN:
            raise EsperError(f"{self}: steps must be a number or {WHOLE_RUN!r}")
        if isinstance(self.steps, int) and self.steps < 0:
            raise EsperError(f"{self}: steps must be 0 (constant) or more")
        if not (math.isfinite(self.start) and math.isfinite(self.end)):
            raise EsperError(f"{self}: start and end must be finite")

    def at(self, updates_done: int, run_updates: int | None = None) -> float:
        """Value after `updates_done` updates; `run_updates`: updates of the whole run."""
        steps = run_updates if self.steps == WHOLE_RUN else self.steps
        if steps is None:
            raise EsperError(f"{self}: the run's length is not known here; give a number of steps")
        if not steps:
            return self.start
        share = min(updates_done, steps) / steps
        return self.start + (self.end - self.start) * share

    def require_within(self, name: str, low: float, high: float) -> None:
        """Raise unless all values lie in `low`..`high`."""
        ends = (self.start, self.end) if self.steps else (self.start,)
        for value in ends:
            if not low <= value <= high:
                raise EsperError(f"{name}={value}: must lie between {low} and {high}")
