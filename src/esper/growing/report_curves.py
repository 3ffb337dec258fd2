"""Score by length of the run: the networks of a search, each at one learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from esper.growing.runs import Row, Table
from esper.plotting.frontier_plot import BOTTOM, HEIGHT, TOP, legend, mark
from esper.plotting.html import Markup, markup, tag
from esper.plotting.line_plot import LEFT, RIGHT, canvas, nothing
from esper.plotting.svg_axes import Scale, x_axis, y_axis

if TYPE_CHECKING:
    from esper.growing.result import GrowResult

KINDS: Final = {
    "stopped": "trained for less",
    "done": "trained in full",
    "front": "frontier",
    "host": "your model",
    "pick": "the pick",
}
"""What lines are called; later ones are drawn above earlier ones."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One network at one rate, trained for several lengths."""

    best: Row
    """Its best run, which names it."""
    kind: str
    points: tuple[tuple[int, float], ...]
    """(batches, validation score) of its runs."""

    @property
    def judged(self) -> bool:
        """Whether it was judged on test."""
        return self.kind in ("pick", "host", "front")


def score_by_length(runs: Table, result: GrowResult) -> list[Curve]:
    """The runs of a table, those of the same network and rate together."""
    judged = {one.number: result.record.kind(one) for one in result.record.judged}
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in runs.rows:
        if row.ended and math.isfinite(row.score):
            key = row.variant, row.topology, row.recipe.lr, row.start
            groups.setdefault(key, []).append(row)
    curves = []
    for rows in groups.values():
        rows.sort(key=lambda row: row.trained)
        best = max(rows, key=lambda row: row.merit)
        full = rows[-1].trained >= result.info.length
        kind = judged.get(best.number, "done" if full else "stopped")
        points = tuple((row.trained, row.score) for row in rows if row.trained)
        curves.append(Curve(best, kind, points))
    return curves


def score_text(value: float) -> str:
    """A score in four digits, a dash if it is not known."""
    return f"{value:.4f}" if math.isfinite(value) else "-"


def curve_plot(curves: Sequence[Curve], metric: str) -> Markup:
    """Validation score against batches; those that matter are drawn last."""
    order = list(KINDS)
    drawn = sorted((c for c in curves if c.points), key=lambda c: order.index(c.kind))
    if not drawn:
        return nothing("no learning curves")
    batches = sorted({float(batch) for curve in drawn for batch, _ in curve.points})
    x = Scale.over(batches, LEFT, RIGHT, log=True, room=0.03)
    y = Scale.over([score for curve in drawn for _, score in curve.points], BOTTOM, TOP)
    kinds = [kind for kind in reversed(order) if any(curve.kind == kind for curve in drawn)]
    return canvas(
        f"Validation {metric} against batches, {len(drawn)} networks; the table below has the "
        f"values",
        HEIGHT,
        legend([(kind, KINDS[kind]) for kind in kinds]),
        x_axis(x, batches, TOP, BOTTOM, "batches of the run (log)"),
        y_axis(y, LEFT, RIGHT, f"validation {metric}"),
        *(_curve(curve, x, y) for curve in drawn),
    )


def _curve(curve: Curve, x: Scale, y: Scale) -> Markup:
    title, best = tag("title", f"network {curve.best.number}"), curve.best
    marked = len(curve.points) == 1 or curve.judged
    marks = [mark(curve.kind, x(best.trained), y(best.score), title)] if marked else []
    line = " ".join(f"{x(batch):.1f},{y(score):.1f}" for batch, score in curve.points)
    width = 2.5 if curve.judged else 1.2
    path = tag("polyline", title, points=line, class_=f"{curve.kind} path", stroke_width=width)
    return markup(path, *marks)
