"""How far a growth run is: a live display on a terminal, about ten plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from esper.karn.stages import STAGE_WORDS
from esper.leyline.stages import SeedStage

PLAIN_LINES: Final = 10
"""Lines of a whole run where there is no terminal."""


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
        counts = ", ".join(
            f"{count} {STAGE_WORDS[stage]}" for stage, count in sorted(self.seeds.items()) if count
        )
        return f"{scores}; seeds: {counts or 'none'}"


class Pace:
    """Speed and time left, without the first step, which also sets things up."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._first: tuple[int, float] | None = None
        self.steps_per_second = math.nan

    def tick(self, done: int) -> None:
        """Note that `done` steps of the total are complete."""
        now = time.monotonic()
        if self._first is None:
            self._first = (done, now)
            return
        first_done, first_time = self._first
        self.steps_per_second = (done - first_done) / max(now - first_time, 1e-9)

    def left(self, done: int) -> str:
        """Time to the end as m:ss, at the speed so far."""
        if not self.steps_per_second > 0:
            return "-:--"
        seconds = round((self.total - done) / self.steps_per_second)
        return f"{seconds // 60}:{seconds % 60:02d}"


class _TwoLines(Progress):
    """The bar, and below it what the step showed."""

    status = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        yield Text(self.status, style="dim")


class GrowthProgress:
    """Shows the steps of a run as they pass.

    with GrowthProgress(total=80, member_steps=16) as progress:
        progress.step(1, status)
    """

    def __init__(self, total: int, member_steps: int, console: Console | None = None) -> None:
        """`total`: steps of the whole command; `member_steps`: members that move in one step."""
        self.total = total
        self.member_steps = member_steps
        self.console = console or Console()
        self.pace = Pace(total)
        self._live: _TwoLines | None = None
        if self.console.is_terminal:
            self._live = _TwoLines(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[speed]}"),
                console=self.console,
            )
            self._task = self._live.add_task("step", total=total, speed="")

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def step(self, done: int, status: GrowthStatus) -> None:
        """Show that `done` steps of the whole command are complete."""
        self.pace.tick(done)
        if self._live is not None:
            self._live.status = status.line()
            self._live.update(self._task, completed=done, speed=self._speed(done), refresh=True)
        elif self._is_due(done):
            line = f"step {done}/{self.total} ({self._speed(done)}): {status.line()}"
            self.console.print(line, soft_wrap=True, highlight=False)

    def _speed(self, done: int) -> str:
        rate = self.pace.steps_per_second * self.member_steps
        shown = "-" if math.isnan(rate) else f"{rate:.1f}"
        return f"{shown} member-steps/s, {self.pace.left(done)} left"

    def _is_due(self, done: int) -> bool:
        """Whether a tenth of the run ended with this step."""
        return done * PLAIN_LINES // self.total > (done - 1) * PLAIN_LINES // self.total
