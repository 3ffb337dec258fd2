"""Networks by size and score: the frontier of a search or an audit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from esper.karn.tui.chart import Axis, Chart
from esper.karn.tui.panel import Panel, not_yet
from esper.karn.tui.reader import RunShot
from esper.plotting.numbers import number

PICK_STYLE: Final = "bold #e69f00"
FRONT_STYLE: Final = "bold #56b4e9"
_ROLES: Final = {
    "pick": ("◆", PICK_STYLE, "pick"),
    "model": ("M", "bold", "your model"),
    "host": ("H", "bold", "host"),
    "frontier": ("●", FRONT_STYLE, "on the frontier"),
    "other": ("○", "dim", "another network"),
}
"""Character, style and meaning of each mark."""


@dataclass(frozen=True, slots=True)
class _Point:
    params: float
    score: float
    role: str


class FrontierChart(Panel):
    """Score against parameters."""

    TITLE = "Frontier"

    def content(self, shot: RunShot, width: int, height: int) -> RenderableType:
        """Chart of all networks; before the result, those that are being trained."""
        judged = _judged(shot)
        points = judged or _in_training(shot)
        if not points:
            return not_yet(shot, "no network is measured yet")
        return Group(_legend(points, bool(judged)), _chart(points, width, max(5, height - 1)))


def _judged(shot: RunShot) -> list[_Point]:
    found = []
    for one in shot.frontier:
        role = "frontier" if one.on_frontier else "other"
        role = ("model" if one.origin == "given" else "host") if one.is_host else role
        role = "pick" if one.is_pick else role
        found.append(_Point(one.params, one.score.value, role))
    return [one for one in found if math.isfinite(one.score) and one.params > 0]


def _in_training(shot: RunShot) -> list[_Point]:
    """Last validation score of each network that is being searched."""
    found = [
        _Point(one.params, one.points[-1].score, "model" if one.origin == "given" else "other")
        for one in shot.curves
        if one.points
    ]
    return [one for one in found if math.isfinite(one.score) and one.params > 0]


def _legend(points: Sequence[_Point], judged: bool) -> Text:
    shown = [look for role, look in _ROLES.items() if any(one.role == role for one in points)]
    parts = [Text.assemble((mark, style), f" {said}") for mark, style, said in shown]
    return Text.assemble(
        Text("test score" if judged else "validation score so far", style="dim"), "  ",
        Text("  ").join(parts), no_wrap=True,
    )  # fmt: skip


def _chart(points: Sequence[_Point], width: int, height: int) -> Text:
    sizes = [one.params for one in points]
    y = Axis.around([one.score for one in points], least=0.02)
    x = Axis(min(sizes) / 1.1, max(sizes) * 1.1, logarithmic=True)
    chart = Chart(width, height, x, y)
    order = list(reversed(_ROLES))  # the pick last, so that nothing hides it
    for one in sorted(points, key=lambda one: order.index(one.role)):
        mark, style, _ = _ROLES[one.role]
        chart.put(one.params, one.score, mark, style)
    return chart.text(f"{number(min(sizes))} parameters", f"{number(max(sizes))}")
