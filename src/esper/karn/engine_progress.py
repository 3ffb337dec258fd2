"""What progress displays of engine runs share: a bar, its pace, and steps that are counted."""

from __future__ import annotations

from typing import Self

from rich.console import Console

from esper.karn.display import Display, Pace, say
from esper.karn.terminal import Terminal
from esper.leyline.payloads import SlotPayload
from esper.leyline.records import Rollout, StepRecord


class EngineProgress:
    """Engine listener and context manager with a bar; subclasses show the steps."""

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

    # ---- EngineListener -----------------------------------------------------------------------

    def on_round_start(self, round_index: int, members: int) -> None:
        """No-op: steps are counted."""

    def on_slot_events(self, round_index: int, step: int, payload: SlotPayload) -> None:
        """No-op: seeds are counted per step."""

    def on_step(self, record: StepRecord) -> None:
        """Show the step."""
        raise NotImplementedError

    def on_round_end(self, rollout: Rollout[object]) -> None:
        """No-op."""
