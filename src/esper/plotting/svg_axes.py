"""Axes of plots: scales, ticks and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from esper.plotting.html import Markup, markup, tag
from esper.plotting.numbers import tick_texts


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values onto pixels."""

    low: float
    high: float
    start: float
    """Pixel of `low`."""
    end: float
    log: bool = False

    @staticmethod
    def over(
        values: Sequence[float], start: float, end: float, log: bool = False, room: float = 0.06
    ) -> Scale:
        """A scale for finite values, with some room at both ends."""
        low, high = min(values), max(values)
        if log:
            factor = max(high / low, 1.02) ** room * 1.01
            return Scale(low / factor, high * factor, start, end, log)
        margin = max((high - low) * room, abs(high) * 1e-3, 1e-6)
        return Scale(low - margin, high + margin, start, end)

    def __call__(self, value: float) -> float:
        """Pixel of a value."""
        low, high = self._axis(self.low), self._axis(self.high)
        share = (self._axis(value) - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def _axis(self, value: float) -> float:
        return math.log(value) if self.log else value

    def ticks(self) -> list[float]:
        """Round numbers in the range, four to eight of them."""
        if not self.log or self.high / self.low < 5:
            return nice_ticks(self.low, self.high)
        for steps in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
            exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)))
            found = [step * 10.0**power for power in exponents for step in steps]
            found = [value for value in found if self.low <= value <= self.high]
            if len(found) <= 8:
                break
        return found


def nice_ticks(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten.

    >>> nice_ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    raw = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def x_axis(scale: Scale, ticks: Sequence[float], top: float, bottom: float, title: str) -> Markup:
    """Grid lines, numbers and the title of the horizontal axis."""
    parts = [tag("line", x1=scale.start, x2=scale.end, y1=bottom, y2=bottom, class_="axis")]
    kept = _apart(ticks, scale)
    for value, text in zip(kept, tick_texts(kept), strict=True):
        x = scale(value)
        parts += [
            tag("line", x1=x, x2=x, y1=top, y2=bottom, class_="grid"),
            tag("text", text, x=x, y=bottom + 18, text_anchor="middle",
                class_="tick"),
        ]  # fmt: skip
    middle = (scale.start + scale.end) / 2
    parts.append(tag("text", title, x=middle, y=bottom + 38, text_anchor="middle", class_="note"))
    return markup(*parts)


def y_axis(scale: Scale, left: float, right: float, title: str) -> Markup:
    """Grid lines, numbers and the title of the vertical axis."""
    parts = [tag("line", x1=left, x2=left, y1=scale.start, y2=scale.end, class_="axis")]
    ticks = scale.ticks()
    for value, text in zip(ticks, tick_texts(ticks), strict=True):
        y = scale(value)
        parts += [
            tag("line", x1=left, x2=right, y1=y, y2=y, class_="grid"),
            tag("text", text, x=left - 8, y=y + 4, text_anchor="end", class_="tick"),
        ]
    parts.append(tag("text", title, x=left - 44, y=scale.end - 10, class_="note"))
    return markup(*parts)


def _apart(ticks: Sequence[float], scale: Scale) -> list[float]:
    """Leave out ticks whose numbers would overlap the one before."""
    kept = list(ticks[:1])
    for _, value in pairwise(ticks):
        if scale(value) - scale(kept[-1]) >= 34:  # pixels of a number
            kept.append(value)
    return kept
