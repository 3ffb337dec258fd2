"""Progress display of a comparison: one bar over all its policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from rich.console import Console

from esper.karn.display import format_speed
from esper.karn.engine_progress import EngineProgress

LINES_EACH: Final = 3
"""Lines per policy without a terminal."""


class CompareProgress(EngineProgress):
    """Shows the steps of every policy; several may run at a time.

    with CompareProgress({"wait": 50, "heuristic": 50}, hosts=20) as progress:
        progress.advance("wait", score=0.3, seeds=0.0)
    """

    def __init__(
        self, steps: Mapping[str, int], hosts: int, console: Console | None = None
    ) -> None:
        """`steps`: per policy, over all its populations; `hosts`: hosts per step."""
        self.steps, self.hosts = dict(steps), hosts
        total = max(1, sum(self.steps.values()))
        super().__init__(total, LINES_EACH * max(1, len(self.steps)), console)
        self._done: Counter[str] = Counter()

    def advance(self, label: str, score: float, seeds: float) -> None:
        """Show a step of a policy; one that starts again stays at its last."""
        self._done[label] = min(self._done[label] + 1, self.steps[label])
        done = self._done.total()
        self.pace.tick(done)
        self._display.show(
            done,
            f"{label} ({list(self._done).index(label) + 1}/{len(self.steps)}), step "
            f"{self._done[label]}/{self.steps[label]}",
            format_speed(self.pace.steps_per_second * self.hosts, self.pace.left(done)),
            f"score {score:.3f}, {seeds:.1f} seeds per host",
        )
