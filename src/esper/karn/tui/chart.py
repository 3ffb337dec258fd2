"""Charts of characters with axes: a grid of cells that marks are put on by value."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from rich.text import Text

LABEL_WIDTH = 7
"""Columns left of the axis."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from `low` to `high`."""

    low: float
    high: float
    logarithmic: bool = False

    @classmethod
    def around(cls, values: Iterable[float], least: float = 0.0) -> Axis:
        """The range of some values with a margin; `least`: smallest range."""
        found = [value for value in values if math.isfinite(value)]
        low, high = min(found, default=0.0), max(found, default=1.0)
        extra = max(0.05 * (high - low), (least - (high - low)) / 2)
        return cls(low - extra, high + extra)

    def share(self, value: float) -> float:
        """Where a value is, 0..1 inside the range."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = (math.log(max(one, 1e-12)) for one in (low, high, value))
        return (value - low) / (high - low) if high > low else 0.5


class Chart:
    """A grid of `width` x `height` cells inside axes."""

    def __init__(self, width: int, height: int, x: Axis, y: Axis) -> None:
        """`width`, `height`: of the whole, with the axes."""
        self.columns, self.rows = max(4, width - LABEL_WIDTH - 2), max(3, height - 2)
        self.x, self.y = x, y
        self._cells = [[(" ", "")] * self.columns for _ in range(self.rows)]

    def column(self, x: float) -> int:
        """Column of a value."""
        return round(self.x.share(x) * (self.columns - 1))

    def put(self, x: float, y: float, mark: str, style: str = "") -> None:
        """Put a mark at a point; outside the range it is left out."""
        share = self.y.share(y)
        if math.isfinite(share) and 0 <= share <= 1:
            self._set(self.column(x), round((1 - share) * (self.rows - 1)), mark, style)

    def bar(self, x: float, low: float, high: float, style: str = "") -> None:
        """A vertical line between two values, cut to the range."""
        if not (math.isfinite(low) and math.isfinite(high)):
            return
        top, bottom = (
            round((1 - min(1.0, max(0.0, self.y.share(end)))) * (self.rows - 1))
            for end in (high, low)
        )
        for row in range(top, bottom + 1):
            self._set(self.column(x), row, "│", style)

    def text(self, x_left: str, x_right: str, digits: int = 3) -> Text:
        """The chart with its axes; `x_left`, `x_right`: below the ends of the x axis."""
        found = Text(no_wrap=True)
        labelled = {0: self.y.high, self.rows // 2: (self.y.low + self.y.high) / 2}
        labelled[self.rows - 1] = self.y.low
        for at, cells in enumerate(self._cells):
            label = f"{labelled[at]:.{digits}f}" if at in labelled else ""
            found.append(f"{label:>{LABEL_WIDTH}} {'┤' if label else '│'}")
            for mark, style in cells:
                found.append(mark, style=style)
            found.append("\n")
        found.append(f"{'':>{LABEL_WIDTH}} └{'─' * self.columns}\n")
        gap = max(1, self.columns - len(x_left) - len(x_right))
        found.append(f"{'':>{LABEL_WIDTH}}  {x_left}{'':>{gap}}{x_right}")
        return found

    def _set(self, column: int, row: int, mark: str, style: str) -> None:
        if 0 <= column < self.columns and 0 <= row < self.rows:
            self._cells[row][column] = (mark, style)
