"""Progress bar on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from esper.karn.stages import stage_name
from esper.leyline.stages import SeedStage
from esper.plotting.durations import duration

PLAIN_LINES: Final = 10
"""Lines per run without a terminal."""

Clock = Callable[[], float]
"""Monotonic clock in seconds."""


class Pace:
    """Remaining time, estimated without the first step, which includes setup."""

    def __init__(self, total: int, clock: Clock = time.monotonic) -> None:
        self.total = total
        self._clock = clock
        self._first: tuple[int, float] | None = None
        self.steps_per_second = math.nan

    def tick(self, done: int) -> None:
        """Record that `done` steps are complete."""
        now = self._clock()
        if self._first is None:
            self._first = (done, now)
            return
        first_done, first_time = self._first
        self.steps_per_second = (done - first_done) / max(now - first_time, 1e-9)

    def seconds_left(self, done: int) -> float:
        """Return the remaining time at the speed so far; NaN: not known yet."""
        if not self.steps_per_second > 0:
            return math.nan
        return max(0, self.total - done) / self.steps_per_second

    def left(self, done: int) -> str:
        """The same in words."""
        return duration(self.seconds_left(done))


def format_speed(member_steps_per_second: float, left: str) -> str:
    """`31.2 member-steps/s, 1:20 left`"""
    unknown = math.isnan(member_steps_per_second)
    shown = "-" if unknown else f"{member_steps_per_second:.1f}"
    return f"{shown} member-steps/s, {left} left"


def format_seeds(seeds: Mapping[SeedStage, int]) -> str:
    """`seeds: 20 blending, 4 holding`; stages without seeds are omitted."""
    counts = ", ".join(
        f"{count} {stage_name(stage)}" for stage, count in sorted(seeds.items()) if count
    )
    return f"seeds: {counts or 'none'}"


def say(console: Console, line: str) -> None:
    """Print a line without interpreting markup."""
    console.print(line, soft_wrap=True, highlight=False, markup=False)


class _BarWithStatus(Progress):
    """Progress bar with a status line below it."""

    status = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        yield Text(self.status, style="dim")


class Display:
    """A bar from 0 to `total` with a status line: live, or `lines` plain lines in total."""

    def __init__(
        self,
        total: int,
        console: Console,
        lines: int = PLAIN_LINES,
        shows_elapsed: bool = False,
    ) -> None:
        """`shows_elapsed`: with a clock, which moves during steps of many seconds, too."""
        self.total = total
        self.console = console
        self._lines = lines
        self._ticks = 0
        self._live: _BarWithStatus | None = None
        if console.is_terminal:
            columns: list[ProgressColumn] = [
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[speed]}", markup=False),
            ]
            columns += [TimeElapsedColumn()] if shows_elapsed else []
            self._live = _BarWithStatus(*columns, console=console)
            self._task = self._live.add_task("", total=total, speed="")

    def start(self) -> None:
        """Start the live display; no-op without a terminal."""
        if self._live is not None:
            self._live.start()

    def stop(self) -> None:
        """Stop the live display, leaving its last state visible."""
        if self._live is not None:
            self._live.stop()

    def show(self, done: int, label: str, speed: str, status: str) -> None:
        """Show that `done` of the total is complete; without a terminal only when a line is due."""
        if self._live is not None:
            self._live.status = status
            self._live.update(self._task, completed=done, description=label, speed=speed)
        elif self._is_due(done):
            say(self.console, f"{label} ({speed}): {status}")

    def _is_due(self, done: int) -> bool:
        """Whether the next fraction of the run is complete since the last line."""
        before, self._ticks = self._ticks, done * self._lines // self.total
        return self._ticks > before
