"""Progress display of a benchmark: one bar over its stages, with a clock that always moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Self

from rich.console import Console

from esper.karn.display import Display

LINES_EACH: Final = 10
"""Lines per stage without a terminal."""
_UNIT: Final = 1000
"""Parts of a stage."""


class BenchProgress:
    """Context manager that shows which policy is made and played.

    with BenchProgress(stages=2, console=console) as progress:
        on_policy = progress.begin("digits")
        on_policy("table", 0, 10)
    """

    def __init__(self, stages: int, console: Console | None) -> None:
        """`console`: None shows nothing."""
        self._display = None
        if console is not None:
            lines = LINES_EACH * stages
            self._display = Display(stages * _UNIT, console, lines, shows_elapsed=True)
        self._begun = 0

    def __enter__(self) -> Self:
        if self._display is not None:
            self._display.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._display is not None:
            self._display.stop()

    def begin(self, label: str) -> Callable[[str, int, int], None]:
        """Start the next stage; returns what is to be called with policy, done and total."""
        before = self._begun * _UNIT
        self._begun += 1

        def show(policy: str, done: int, total: int) -> None:
            if self._display is not None:
                parts = before + _UNIT * (done + 1) // total
                self._display.show(parts, label, f"{done + 1}/{total}", policy)

        return show
