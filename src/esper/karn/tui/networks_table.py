"""Networks of a search or topologies of an audit: size, score and learning curve of each."""

from __future__ import annotations

import math

from rich.console import RenderableType
from rich.text import Text

from esper.karn.tui.formats import sparkline, topology
from esper.karn.tui.frontier_chart import FRONT_STYLE, PICK_STYLE
from esper.karn.tui.panel import Panel, not_yet, plain_table
from esper.karn.tui.reader import RunShot
from esper.karn.views import FrontierPoint, NetworkCurve
from esper.plotting.numbers import fixed, number

_CURVE = 8


class NetworksTable(Panel):
    """One row per network, best score first."""

    TITLE = "Networks"

    def content(self, shot: RunShot, width: int, height: int) -> RenderableType:
        """Tested networks with their test score, the others with their last validation score."""
        if not shot.curves and not shot.frontier:
            return not_yet(shot, "no network is trained yet")
        tested = {one.label: one for one in shot.frontier}
        curves = {one.label: one for one in shot.curves}
        table = plain_table("", "no.", "test", "val.", "curve", "params", "width", "seeds; recipe",
                            right=(1, 2, 3, 5))  # fmt: skip
        table.columns[-1].no_wrap = False  # it gives way, figures never do
        labels = sorted(
            {**tested, **curves}, key=lambda label: -_rank(tested.get(label), curves.get(label))
        )
        for label in labels:
            point, curve = tested.get(label), curves.get(label)
            table.add_row(_role(point), label, *_cells(point, curve))
        return table


def _rank(point: FrontierPoint | None, curve: NetworkCurve | None) -> float:
    """Tested ones first, by test score, then by validation score."""
    if point is not None and math.isfinite(point.score.value):
        return 1e6 + point.score.value
    last = _last(curve)
    return last if math.isfinite(last) else -1e6


def _last(curve: NetworkCurve | None) -> float:
    return curve.points[-1].score if curve is not None and curve.points else math.nan


def _role(point: FrontierPoint | None) -> Text:
    if point is None:
        return Text("")
    if point.is_pick:
        return Text("◆", style=PICK_STYLE)
    if point.is_host:
        return Text("M" if point.origin == "given" else "H", style="bold")
    return Text("●", style=FRONT_STYLE) if point.on_frontier else Text("")


def _cells(point: FrontierPoint | None, curve: NetworkCurve | None) -> list[RenderableType]:
    known = point or curve
    assert known is not None, "a label comes from one of the two"
    val = point.val_score if point is not None else _last(curve)
    line = sparkline([one.score for one in curve.points], _CURVE) if curve else ""
    seeds = topology(known.topology) if any(known.topology) else ""
    recipe = curve.recipe if curve else ""
    return [
        fixed(point.score.value if point else None),
        fixed(val),
        line,
        number(known.params),
        known.variant or "x1",
        Text("; ".join(part for part in (seeds, recipe) if part)),
    ]
