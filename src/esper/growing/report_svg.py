"""Plots of a report as inline SVG: the frontier, learning curves, and what was grown where."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from esper.growing.folder import GrowInfo
from esper.leyline.errors import shorten
from esper.plotting.html import Markup, markup, tag
from esper.plotting.svg_axes import Scale, x_axis, y_axis

if TYPE_CHECKING:
    from esper.growing.result import NetworkRecord, ResultRecord

WIDTH: Final = 760
HEIGHT: Final = 400
LEFT, RIGHT, TOP, BOTTOM = 64, 740, 62, 350
"""Edges of the area that data are drawn in."""
Kind = Literal["front", "host", "pick", "others", "done", "stopped"]
LEGEND: Final[dict[Kind, str]] = {
    "pick": "the pick",
    "host": "your model",
    "front": "frontier",
    "others": "others, validation score",
    "done": "trained in full",
    "stopped": "trained for less",
}


def figure(label: str, height: float, *parts: str) -> Markup:
    """An SVG that screen readers announce as a picture with a label."""
    return tag(
        "svg",
        *parts,
        viewBox=f"0 0 {WIDTH} {height:g}",
        role="img",
        aria_label=label,
        xmlns="http://www.w3.org/2000/svg",
    )


def symbol(kind: Kind, x: float, y: float, title: str = "") -> Markup:
    """The mark of a network: kinds differ in shape, not in colour alone."""
    inside = [tag("title", title)] if title else []
    if kind == "pick":
        corners = f"{x:.1f},{y - 8:.1f} {x + 8:.1f},{y:.1f} {x:.1f},{y + 8:.1f} {x - 8:.1f},{y:.1f}"
        return tag("polygon", *inside, points=corners, class_=kind)
    if kind == "host":
        return tag("rect", *inside, x=x - 5, y=y - 5, width=10, height=10, class_=kind)
    radius = {"others": 4.0, "front": 5.0}.get(kind, 2.5)
    return tag("circle", *inside, cx=x, cy=y, r=radius, class_=kind)


def legend(kinds: Sequence[Kind]) -> Markup:
    """Marks and their meaning, above the plot."""
    parts, x = [], float(LEFT)
    for kind in kinds:
        parts += [symbol(kind, x + 8, 18), tag("text", LEGEND[kind], x=x + 22, y=22.0)]
        x += 48 + 6.6 * len(LEGEND[kind])
    return markup(*parts)


# ---- the frontier -----------------------------------------------------------------------------


def kind_of(record: NetworkRecord, result: ResultRecord) -> Kind:
    """How a network of the result is marked."""
    if record.number == result.pick:
        return "pick"
    return "host" if record.number == result.host.number else "front"


def judged(result: ResultRecord) -> list[NetworkRecord]:
    """Every network with a test score, smallest first."""
    every = {record.number: record for record in (result.host, *result.networks)}
    return sorted(every.values(), key=lambda record: record.params)


def frontier_plot(result: ResultRecord, metric: str) -> Markup:
    """Test score against parameters, with the standard error; others by validation."""
    points = [r for r in judged(result) if math.isfinite(r.test_score)]
    known = {record.number for record in points}
    others = [r for r in result.others if r.number not in known and math.isfinite(r.val_score)]
    if not points:
        return figure("No network has a test score", 60, tag("text", "no test scores", x=20, y=30))
    x = Scale.over([float(r.params) for r in (*points, *others)], LEFT, RIGHT, log=True)
    ends = [r.test_score + side * _error(r) for r in points for side in (-1, 1)]
    y = Scale.over([*ends, *(r.val_score for r in others)], BOTTOM, TOP)
    front = [r for r in result.networks if math.isfinite(r.test_score)]
    line = " ".join(f"{x(r.params):.1f},{y(r.test_score):.1f}" for r in front)
    kinds: list[Kind] = sorted({kind_of(r, result) for r in points}, key=list(LEGEND).index)
    return figure(
        f"Test {metric} against parameters, {len(points)} networks; the table below has the values",
        HEIGHT,
        legend([*kinds, "others"] if others else kinds),
        x_axis(x, x.ticks(), TOP, BOTTOM, "parameters (log)"),
        y_axis(y, LEFT, RIGHT, metric),
        *(symbol("others", x(r.params), y(r.val_score),
                 f"network {r.number}: {r.params:,} parameters, validation {r.val_score:.4f}")
          for r in others),
        tag("polyline", points=line, class_="front path"),
        *(_point(r, kind_of(r, result), x(r.params), y) for r in points),
    )  # fmt: skip


def _error(record: NetworkRecord) -> float:
    return record.test_se if math.isfinite(record.test_se) else 0.0


def _point(record: NetworkRecord, kind: Kind, x: float, y: Scale) -> Markup:
    """A network and its error bar."""
    score, error = record.test_score, _error(record)
    bars = []
    if error:
        low, high = y(score - error), y(score + error)
        bars = [
            tag("line", x1=x, x2=x, y1=low, y2=high, class_=kind),
            *(tag("line", x1=x - 4, x2=x + 4, y1=end, y2=end, class_=kind) for end in (low, high)),
        ]
    title = f"network {record.number}: {record.params:,} parameters, test {score:.4f}"
    return markup(*bars, symbol(kind, x, y(score), title))


# ---- learning curves --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Curve:
    """Validation scores of a network by the length of its runs."""

    number: int
    kind: Kind
    points: tuple[tuple[int, float], ...]
    """(batches, score)"""
    best: tuple[int, float]
    """The one of the run that is named."""


def curve_plot(curves: Sequence[Curve], metric: str) -> Markup:
    """Validation score against batches; those that matter are drawn last."""
    order = ("stopped", "done", "front", "host", "pick")
    drawn = sorted((c for c in curves if c.points), key=lambda c: order.index(c.kind))
    values = [score for curve in drawn for _, score in curve.points]
    batches = sorted({float(batch) for curve in drawn for batch, _ in curve.points})
    if not drawn:
        return figure("No learning curves", 60, tag("text", "no learning curves", x=20, y=30))
    x = Scale.over(batches, LEFT, RIGHT, log=True, room=0.03)
    y = Scale.over(values, BOTTOM, TOP)
    kinds: list[Kind] = sorted({curve.kind for curve in drawn}, key=list(LEGEND).index)
    return figure(
        f"Validation {metric} against batches, {len(drawn)} networks; the table below has the "
        f"values",
        HEIGHT,
        legend(kinds),
        x_axis(x, batches, TOP, BOTTOM, "batches of the run (log)"),
        y_axis(y, LEFT, RIGHT, f"validation {metric}"),
        *(_curve(curve, x, y) for curve in drawn),
    )


def _curve(curve: Curve, x: Scale, y: Scale) -> Markup:
    pixels = [(x(batch), y(score)) for batch, score in curve.points]
    title = f"network {curve.number}"
    batch, score = curve.best
    marked = len(pixels) == 1 or curve.kind not in ("stopped", "done")
    marks = [symbol(curve.kind, x(batch), y(score), title)] if marked else []
    line = " ".join(f"{a:.1f},{b:.1f}" for a, b in pixels)
    width = 2.5 if curve.kind in ("pick", "host", "front") else 1.2
    return markup(
        tag("polyline", tag("title", title), points=line, class_=f"{curve.kind} path",
            stroke_width=width),
        *marks,
    )  # fmt: skip


# ---- what was grown ---------------------------------------------------------------------------


def growth_plot(info: GrowInfo, pick: NetworkRecord, places: Sequence[str]) -> Markup:
    """The places in order, in the model as given and in the pick, with the seeds in them."""
    before, after, step = 400.0, 600.0, 44.0
    bottom = 70 + step * (len(places) + 1)
    parts = [
        tag("text", f"your model, {info.host_params:,}", x=before, y=20.0, text_anchor="middle"),
        tag("text", _pick_title(pick), x=after, y=20.0, text_anchor="middle"),
    ]
    for x in (before, after):
        parts += [
            tag("line", x1=x, x2=x, y1=62.0, y2=bottom - 14, class_="axis"),
            tag("text", "input", x=x, y=54.0, text_anchor="middle", class_="note"),
            tag("text", "output", x=x, y=bottom, text_anchor="middle", class_="note"),
        ]
    for row, (place, seed) in enumerate(zip(places, pick.topology, strict=True)):
        y = 56 + step * (row + 1)
        parts += [
            tag("text", shorten(place, 40), x=300.0, y=y + 4, text_anchor="end"),
            tag("circle", cx=before, cy=y, r=6.0, class_="empty"),
            _seed(seed, after, y),
        ]
    seeds = sum(map(bool, pick.topology))
    label = f"{len(places)} places to grow, {seeds} of them with a seed in the pick"
    return figure(label, bottom + 16, *parts)


def _pick_title(pick: NetworkRecord) -> str:
    width = f", {pick.variant} as wide" if pick.variant else ""
    return f"the pick, {pick.params:,}{width}"


def _seed(name: str, x: float, y: float) -> Markup:
    if not name:
        return tag("circle", cx=x, cy=y, r=6.0, class_="empty")
    width = 24 + 7.5 * len(name)
    return markup(
        tag("rect", x=x - width / 2, y=y - 14, width=width, height=28, rx=6, class_="seed"),
        tag("text", name, x=x, y=y + 5, text_anchor="middle"),
    )
