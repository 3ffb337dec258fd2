"""What all plots of a report share: canvas, legend, lines with bands."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from esper.leyline.statistics import Estimate
from esper.plotting.html import Markup, markup, tag
from esper.plotting.svg_axes import Scale, x_axis, y_axis

WIDTH: Final = 760
LEFT, RIGHT = 76.0, 740.0
SERIES: Final = ("front", "host", "pick", "done")
"""Classes of lines, in order; dashes differ, too, so that colour is not needed."""
DASHES: Final = ("", "7 4", "2 3", "9 3 2 3")

Place = tuple[float, float]
"""A value of the horizontal axis and one of the vertical."""


@dataclass(frozen=True, slots=True)
class Series:
    """A line with an interval around each point."""

    label: str
    points: tuple[tuple[float, Estimate], ...]


def canvas(label: str, height: float, *parts: str) -> Markup:
    """An SVG that screen readers announce as a picture with a label."""
    return tag(
        "svg",
        *parts,
        viewBox=f"0 0 {WIDTH} {height:g}",
        role="img",
        aria_label=label,
        xmlns="http://www.w3.org/2000/svg",
    )


def nothing(reason: str) -> Markup:
    """A picture of nothing, and why."""
    return tag("p", reason, class_="muted")


def _finite(*values: float) -> list[float]:
    """The finite ones."""
    return [value for value in values if math.isfinite(value)]


def score_scale(estimates: Sequence[Estimate], bottom: float, top: float) -> Scale | None:
    """A scale for values and their intervals; None if none is known.

    A hopeless interval (of two runs, say) is cut off rather than flattening everything else.
    """
    middle = _finite(*(one.value for one in estimates))
    if not middle:
        return None
    reach = 2 * (max(middle) - min(middle) or 0.05)
    ends = [end for one in estimates for end in _finite(one.low, one.high)]
    near = [min(max(end, min(middle) - reach), max(middle) + reach) for end in ends]
    return Scale.over([*middle, *near], bottom, top)


def within(value: float, scale: Scale) -> float:
    """Pixel of a value, at the edge if it is outside."""
    return scale(min(max(value, scale.low), scale.high))


def whisker(low: float, high: float, scale: Scale, across: float, kind: str) -> Markup:
    """An interval as an upright line; where it leaves the axis an arrow points out of it."""
    line = f"M{across:.1f} {within(low, scale):.1f}V{within(high, scale):.1f}"
    arrows = "".join(_arrow(end, scale, across) for end in (low, high))
    return tag("path", d=line + arrows, class_=kind)


def _arrow(value: float, scale: Scale, across: float) -> str:
    """Path of an arrow at the end of the axis; empty if the value is on it."""
    if scale.low <= value <= scale.high:
        return ""
    tip = within(value, scale)
    back = tip + (6 if value > scale.high else -6)
    return f"M{across - 4:.1f} {back:.1f}L{across:.1f} {tip:.1f}L{across + 4:.1f} {back:.1f}"


def line_panel(series: Sequence[Series], x: Scale, top: float, bottom: float, title: str) -> Markup:
    """Lines with bands, a vertical axis and a legend; no horizontal axis."""
    y = score_scale([e for one in series for _, e in one.points], bottom, top)
    if y is None:
        return markup()
    parts = [y_axis(y, LEFT, RIGHT, title)]
    names = [one.label for one in series if one.label]
    at = LEFT + 130
    for number, one in enumerate(series):
        kind, dash = SERIES[number % len(SERIES)], DASHES[number % len(DASHES)]
        parts += [_band(one, x, y, kind), _line(one, x, y, kind, dash)]
        if len(names) > 1:
            parts += [
                tag("line", x1=at, x2=at + 26, y1=top - 14, y2=top - 14, class_=kind,
                    stroke_width=2.2, stroke_dasharray=dash or "none"),
                tag("text", one.label, x=at + 32, y=top - 10, class_="note"),
            ]  # fmt: skip
            at += 60 + 7.0 * len(one.label)
    return markup(*parts)


def _known(one: Series) -> list[tuple[float, Estimate]]:
    return [(at, e) for at, e in one.points if math.isfinite(e.value)]


def _band(one: Series, x: Scale, y: Scale, kind: str) -> Markup:
    known = [(at, e) for at, e in _known(one) if math.isfinite(e.low + e.high)]
    if len(known) < 2:
        return markup(*(whisker(e.low, e.high, y, x(at), kind) for at, e in known))
    edge = [(x(at), within(e.high, y)) for at, e in known]
    edge += [(x(at), within(e.low, y)) for at, e in known[::-1]]
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in edge)
    cut = "".join(
        _arrow(value, y, x((run[0][0] + run[-1][0]) / 2))
        for ends in ([(at, e.low) for at, e in known], [(at, e.high) for at, e in known])
        for value, run in _outside(ends, y)
    )
    arrows = [tag("path", d=cut, class_=kind)] if cut else []
    return markup(tag("polygon", points=points, class_=f"{kind} band"), *arrows)


def _outside(ends: Sequence[Place], y: Scale) -> Iterator[tuple[float, list[Place]]]:
    """Stretches of a band's edge beyond the axis, with a value of each."""
    for is_on, run in groupby(ends, key=lambda one: y.low <= one[1] <= y.high):
        if not is_on:
            stretch = list(run)
            yield stretch[0][1], stretch


def _line(one: Series, x: Scale, y: Scale, kind: str, dash: str) -> Markup:
    known = [(x(at), y(e.value)) for at, e in _known(one)]
    if len(known) == 1:
        return tag("circle", cx=known[0][0], cy=known[0][1], r=4.0, class_=kind)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in known)
    style = {"stroke_dasharray": dash} if dash else {}
    return tag("polyline", points=points, class_=f"{kind} path", stroke_width=2.2, **style)


def line_plot(
    series: Sequence[Series], x_title: str, y_title: str, label: str, height: float = 300.0
) -> Markup:
    """Lines with bands over a common horizontal axis."""
    ats = [at for one in series for at, e in one.points if math.isfinite(e.value)]
    if not ats:
        return nothing("nothing was recorded for this picture")
    x = Scale.over([float(at) for at in ats], LEFT, RIGHT, room=0.02)
    top, bottom = 44.0, height - 50
    ticks = sorted({round(t) for t in x.ticks() if min(ats) <= round(t) <= max(ats)})
    whole = all(float(at).is_integer() for at in ats)
    return canvas(
        label,
        height,
        x_axis(x, ticks if whole and ticks else x.ticks(), top, bottom, x_title),
        line_panel(series, x, top, bottom, y_title),
    )
