"""Progress display of a comparison: one bar over all its policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rich.console import Console

from esper.karn.display import format_speed
from esper.karn.engine_progress import EngineProgress
from esper.leyline.records import StepRecord
from esper.leyline.statistics import student_estimate

LINES_EACH: Final = 3
"""Lines per policy without a terminal."""


class CompareProgress(EngineProgress):
    """Engine listener that shows the steps of every policy.

    with CompareProgress({"wait": 50, "heuristic": 50}, hosts=20) as progress:
        progress.begin("wait")
    """

    def __init__(
        self, steps: Mapping[str, int], hosts: int, console: Console | None = None
    ) -> None:
        """`steps`: per policy, over all its populations; `hosts`: hosts per step."""
        self.steps, self.hosts = dict(steps), hosts
        total = max(1, sum(self.steps.values()))
        super().__init__(total, LINES_EACH * max(1, len(self.steps)), console)
        self._label, self._begun, self._step, self._before = "", 0, 0, 0

    def begin(self, label: str) -> None:
        """Start the next policy."""
        self._before += self.steps.get(self._label, 0)
        self._label, self._begun, self._step = label, self._begun + 1, 0

    def on_step(self, record: StepRecord) -> None:
        """Show the step."""
        self._step += 1
        done = self._before + self._step
        self.pace.tick(done)
        score_E = record.reward_inputs.score_E
        seeds = int((record.signals.slots.blueprint_ES >= 0).sum()) / len(score_E)
        self._display.show(
            done,
            f"{self._label} ({self._begun}/{len(self.steps)}), step "
            f"{self._step}/{self.steps[self._label]}",
            format_speed(self.pace.steps_per_second * self.hosts, self.pace.left(done)),
            f"score {student_estimate(score_E).value:.3f}, {seeds:.1f} seeds per host",
        )
