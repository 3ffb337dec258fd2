"""Progress display of an audit: one bar over all its contexts, weighted by their compute."""

from __future__ import annotations

from typing import Final, Self

from rich.console import Console

from esper.leyline.arrays import Floats
from esper.leyline.records import StepRecord
from esper_lab.progress.engine import EngineProgress

LINES_EACH: Final = 4
"""Lines per context without a terminal."""
_UNIT: Final = 1000
"""Parts of a training run of the host that progress is counted in."""


class AuditProgress(EngineProgress):
    """Engine listener that shows how much of an audit is done, and how long the rest will take."""

    def __init__(
        self, work: float, contexts: int, steps: int, console: Console | None = None
    ) -> None:
        """`work`: of all episodes to come; `contexts`: in them; `steps`: of an episode."""
        total = max(1, round(work * _UNIT))
        super().__init__(total, LINES_EACH * max(1, contexts), console, shows_elapsed=True)
        self._steps, self._step = steps, 0
        self._label, self._work, self._done = "", 0.0, 0.0

    def __enter__(self) -> Self:
        super().__enter__()
        self._display.show(0, "preparing", "", "")
        return self

    def begin(self, label: str, work: float) -> None:
        """Start the next episode."""
        self._label, self._work, self._step = label, work, 0

    def on_step(self, record: StepRecord) -> None:
        """Show the step."""
        self._step += 1
        label = f"{self._label}, step {self._step}/{self._steps}"
        self.advance(label, self._work, record.signals.val_accuracy_E)

    def advance(self, label: str, work: float, accuracy_E: Floats) -> None:
        """Show a step of an episode with this work."""
        self._done += work / self._steps
        done = round(self._done * _UNIT)
        self.pace.tick(done)
        self._display.show(
            done,
            label,
            f"{self.pace.left(done)} left",
            f"accuracy {100 * float(accuracy_E.mean()):.1f} % "
            f"({100 * float(accuracy_E.min()):.1f} to {100 * float(accuracy_E.max()):.1f})",
        )
