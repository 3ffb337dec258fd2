"""How far is a growth run? Shown as its steps pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console

from esper.karn.display import Display, Pace, seed_words, speed_words
from esper.leyline.stages import SeedStage


@dataclass(frozen=True, slots=True)
class GrowthStatus:
    """What is shown about the step just done."""

    accuracy: Mapping[str, float]
    """Label of a population -> its mean held-out accuracy, 0..1."""
    seeds: Mapping[SeedStage, int]
    """How many seeds are in each stage; slots without a seed are not counted."""

    def line(self) -> str:
        """`grown 61.2 %, alone 24.0 %; seeds: 20 blending, 4 probation`"""
        scores = ", ".join(f"{label} {100 * value:.1f} %" for label, value in self.accuracy.items())
        return f"{scores}; {seed_words(self.seeds)}"


class GrowthProgress:
    """Shows the steps of a run as they pass.

    with GrowthProgress(total=80, member_steps=16) as progress:
        progress.step(1, status)
    """

    def __init__(self, total: int, member_steps: int, console: Console | None = None) -> None:
        """`total`: steps of the whole command; `member_steps`: members that move in one step."""
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
        speed = speed_words(rate, self.pace.left(done))
        self._display.show(done, f"step {done}/{self.total}", speed, status.line())
