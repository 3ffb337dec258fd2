"""Progress display of an audit: one bar over all its contexts, weighted by their compute."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from rich.console import Console

from esper.karn.display import Display, Pace, say
from esper.leyline.payloads import SlotPayload
from esper.leyline.records import Rollout, StepRecord

LINES_EACH: Final = 4
"""Lines per context without a terminal."""
_UNIT: Final = 1000
"""Parts of a training run of the bare host that progress is counted in."""


class AuditProgress:
    """Engine listener that shows how much of an audit is done, and how long the rest will take."""

    def __init__(
        self, work: float, contexts: int, steps: int, console: Console | None = None
    ) -> None:
        """`work`: of all episodes to come; `contexts`: in them; `steps`: of an episode."""
        self.console = console or Console()
        total = max(1, round(work * _UNIT))
        self.pace = Pace(total)
        lines = LINES_EACH * max(1, contexts)
        self._display = Display(total, self.console, lines, shows_elapsed=True)
        self._steps, self._step = steps, 0
        self._label, self._before, self._work = "", 0.0, 0.0

    def __enter__(self) -> Self:
        self._display.start()
        self._display.show(0, "preparing", "", "")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._display.stop()

    def say(self, line: str) -> None:
        """Print a permanent line above the bar."""
        say(self.console, line)

    def begin(self, label: str, work: float) -> None:
        """Start the next episode."""
        self._before += self._work
        self._label, self._work, self._step = label, work, 0

    # ---- EngineListener -----------------------------------------------------------------------

    def on_round_start(self, round_index: int, members: int) -> None:
        """No-op: steps are counted."""

    def on_slot_events(self, round_index: int, step: int, payload: SlotPayload) -> None:
        """No-op."""

    def on_step(self, record: StepRecord) -> None:
        """Show the step."""
        self._step += 1
        done = round((self._before + self._work * self._step / self._steps) * _UNIT)
        self.pace.tick(done)
        accuracy_E = record.signals.val_accuracy_E
        self._display.show(
            done,
            f"{self._label}, step {self._step}/{self._steps}",
            f"{self.pace.left(done)} left",
            f"accuracy {100 * float(accuracy_E.mean()):.1f} % "
            f"({100 * float(accuracy_E.min()):.1f} to {100 * float(accuracy_E.max()):.1f})",
        )

    def on_round_end(self, rollout: Rollout[object]) -> None:
        """No-op."""
