"""Progress display of a comparison: one bar over all its policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, Self

from rich.console import Console

from esper.karn.display import Display, Pace, format_speed, say
from esper.karn.terminal import Terminal
from esper.storage.live import LiveRecord

LINES_EACH: Final = 3
"""Lines per policy without a terminal."""


class ProgressBar:
    """Context manager with a bar and its pace; subclasses show the steps."""

    def __init__(
        self, total: int, lines: int, console: Console | None = None, shows_elapsed: bool = False
    ) -> None:
        """`total`: of the bar; `lines`: without a terminal."""
        self.console = console or Terminal()
        self.pace = Pace(total)
        self._display = Display(total, self.console, lines, shows_elapsed)

    def __enter__(self) -> Self:
        self._display.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._display.stop()

    def say(self, line: str) -> None:
        """Print a permanent line above the bar."""
        say(self.console, line)


class CompareProgress(ProgressBar):
    """Shows the steps of every policy; several may run at a time.

    with CompareProgress({"wait": 50, "heuristic": 50}, 20, console, before=0) as progress:
        progress.advance("wait", score=0.3, seeds=0.0)
    """

    def __init__(
        self,
        steps: Mapping[str, int],
        hosts: int,
        console: Console,
        before: int,
    ) -> None:
        """`steps`: per policy, over all its populations; `hosts`: hosts per step; `before`:
        policies that were done already.
        """
        self.steps, self.hosts, self._before = dict(steps), hosts, before
        self._total = max(1, sum(self.steps.values()))
        super().__init__(self._total, LINES_EACH * max(1, len(self.steps)), console)
        self._done: Counter[str] = Counter()
        self.record = LiveRecord("comparing")
        """What is under way; replaced, never changed, as another thread reads it."""

    def advance(self, label: str, score: float, seeds: float) -> None:
        """Show a step of a policy; one that starts again stays at its last."""
        self.note(label, score)
        done = self._done.total()
        self._display.show(
            done,
            f"{label} ({list(self._done).index(label) + 1}/{len(self.steps)}), step "
            f"{self._done[label]}/{self.steps[label]}",
            format_speed(self.pace.steps_per_second * self.hosts, self.pace.left(done)),
            f"score {score:.3f}, {seeds:.1f} seeds per host",
        )

    def note(self, label: str, score: float) -> None:
        """Count a step of a policy without showing it."""
        self._done[label] = min(self._done[label] + 1, self.steps[label])
        done, policies = self._done.total(), self._before + len(self.steps)
        self.pace.tick(done)
        self.record = LiveRecord(
            "comparing",
            share=(self._before + len(self.steps) * done / self._total) / policies,
            seconds_left=self.pace.seconds_left(done),
            step=self._done[label],
            steps=self.steps[label],
            score=score,
            policy=label,
            done=self._before + sum(n == self.steps[name] for name, n in self._done.items()),
            total=policies,
        )
