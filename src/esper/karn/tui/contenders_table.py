"""Policies that are compared: score with its interval, drawn on one scale, and what each cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from esper.karn.tui.chart import Axis
from esper.karn.tui.formats import known
from esper.karn.tui.learning_curve import INTERVAL_STYLE, MEAN_STYLE
from esper.karn.tui.panel import Panel, not_yet, plain_table
from esper.karn.tui.reader import RunShot
from esper.karn.views import Contender, RunKind, RunState, RunSummary
from esper.leyline.errors import shorten
from esper.plotting.numbers import fixed, interval, number, signed_interval

_FIGURES_WIDTH = 27
"""Columns of everything but name, drawn interval and difference."""
_NAME: Final = 24
_REFERENCE: Final = 12
"""Columns of the reference in the head."""


def _why_none(run: RunSummary) -> str:
    if run.state is not RunState.RUNNING:
        return "no policy was evaluated"
    if run.kind is RunKind.AUDIT:
        return "policies are judged once all contexts are done"
    return "no policy is complete yet"


class ContendersTable(Panel):
    """One row per policy, best first."""

    TITLE = "Policies"

    def content(self, shot: RunShot, width: int, height: int) -> RenderableType:
        """The table, and what differences are to."""
        found = shot.contenders
        if not found:
            return not_yet(shot, _why_none(shot.summary))
        differences = [
            "reference" if one.is_reference else signed_interval(one.difference) for one in found
        ]
        named = next((one.label for one in found if one.is_reference), "the reference")
        apart = f"minus {shorten(named, _REFERENCE)}"
        names = min(_NAME, max(len(one.label) for one in found))
        wide = max(map(len, (apart, *differences)))
        others = _FIGURES_WIDTH + names + wide + len(str(found[0].n))
        room = max(12, min(60, width - others))
        scale = _scale(found)
        table = plain_table("policy", "n", "score", _ends(scale, room), apart, "params",
                            "compute", right=(1, 5, 6))  # fmt: skip
        for one, difference in zip(found, differences, strict=True):
            name = Text(one.label, style="bold" if one.is_reference else "")
            name.truncate(_NAME, overflow="ellipsis")
            table.add_row(name, str(one.n), fixed(one.score.value), _drawn(one, scale, room),
                          difference, number(one.params), fixed(one.compute, 2))  # fmt: skip
        return Group(table, Text(""), *_best(found))


def _best(found: Sequence[Contender]) -> list[RenderableType]:
    best = found[0]
    said = f"best: {best.label}, score {interval(best.score)}, n = {best.n}; intervals are 95 %"
    return [Text(said, style="dim")]


def _scale(found: Sequence[Contender]) -> Axis:
    """From the lowest to the highest end, but not far beyond the means."""
    means = [one.score.value for one in found]
    spread = 3 * max(max(means) - min(means), 0.05)
    low, high = min(means) - spread, max(means) + spread
    ends = [end for one in found for end in (one.score.low, one.score.high)]
    return Axis.around([*means, *(min(high, max(low, end)) for end in ends if known(end))])


def _ends(scale: Axis, room: int) -> str:
    low, high = fixed(scale.low, 2), fixed(scale.high, 2)
    return f"{low}{'':>{room - len(low) - len(high)}}{high}"


def _drawn(one: Contender, scale: Axis, room: int) -> Text:
    """`  ├───●───┤  `"""
    if not math.isfinite(one.score.value):
        return Text("")

    def column(value: float) -> int:
        return round(min(1.0, max(0.0, scale.share(value))) * (room - 1))

    cells = [" "] * room
    middle = column(one.score.value)
    if known(one.score.low) and known(one.score.high):
        low, high = column(one.score.low), column(one.score.high)
        for at in range(low, high + 1):
            cells[at] = "─"
        cells[low], cells[high] = "├", "┤"
    return Text.assemble(
        ("".join(cells[:middle]), INTERVAL_STYLE), ("●", MEAN_STYLE),
        ("".join(cells[middle + 1 :]), INTERVAL_STYLE),
    )  # fmt: skip
