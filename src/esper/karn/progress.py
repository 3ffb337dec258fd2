"""Progress display of a growth run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console

from esper.karn.display import Display, Pace, format_seeds, format_speed
from esper.leyline.stages import SeedStage


@dataclass(frozen=True, slots=True)
class GrowthStatus:
    """Status shown after a step."""

    accuracy: Mapping[str, float]
    """Label of a population -> its mean held-out accuracy, 0..1."""
    seeds: Mapping[SeedStage, int]
    """Seeds in each stage; empty slots are not counted."""

    def line(self) -> str:
        """`grown 61.2 %, alone 24.0 %; seeds: 20 blending, 4 probation`"""
        scores = ", ".join(f"{label} {100 * value:.1f} %" for label, value in self.accuracy.items())
        return f"{scores}; {format_seeds(self.seeds)}"


class GrowthProgress:
    """Context manager that shows the steps of a run.

    with GrowthProgress(total=80, member_steps=16) as progress:
        progress.step(1, status)
    """

    def __init__(self, total: int, member_steps: int, console: Console | None = None) -> None:
        """`total`: steps of the whole command; `member_steps`: members per step."""
        self.total = total
        self.member_steps = member_steps
        self.pace = Pace(total)
        self._display = Display(total, console or Console())

    def __enter__(self) -> Self:
        self._display.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._display.stop()

    def step(self, done: int, status: GrowthStatus) -> None:
        """Show that `done` steps of the whole command are complete."""
        self.pace.tick(done)
        rate = self.pace.steps_per_second * self.member_steps
        speed = format_speed(rate, self.pace.left(done))
        self._display.show(done, f"step {done}/{self.total}", speed, status.line())
