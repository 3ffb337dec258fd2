"""Mean score by round with its interval over members, and where the newest round stands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from esper.karn.tui.chart import LABEL_WIDTH, Axis, Chart
from esper.karn.tui.panel import Panel, not_yet
from esper.karn.tui.reader import RunShot
from esper.karn.views import RoundPoint
from esper.plotting.numbers import fixed, interval

MEAN_STYLE: Final = "bold #56b4e9"
INTERVAL_STYLE: Final = "dim"
_SHOWN_SPREAD: Final = 1.5
"""Intervals are cut this many ranges of the means beyond them: those of two members are huge."""


class LearningCurve(Panel):
    """The learning curve of a training run."""

    TITLE = "Learning curve"
    SHORT = "Curve"

    def content(self, shot: RunShot, width: int, height: int) -> RenderableType:
        """Chart, and the newest round in words."""
        points = [one for one in shot.rounds if math.isfinite(one.score.value)]
        if not points:
            return not_yet(shot, "no round is complete yet")
        words = _in_words(points, width, shot.summary.ranked)
        return Group(words, _chart(points, width, max(5, height - 2)))


def _in_words(points: Sequence[RoundPoint], width: int, ranked: bool) -> Text:
    """Two lines; what does not fit is left out whole. `ranked`: one round is the best."""
    last, best = points[-1], max(points, key=lambda one: one.score.value)
    score, accuracy = (
        f"training score {interval(last.score)}",
        f"  accuracy {fixed(last.accuracy.value)}",
    )
    score = score if len(score) <= width else f"training score {fixed(last.score.value, 4)}"
    found = f"best {fixed(best.score.value)} in round {best.round + 1}" if ranked else ""
    marks = "  ● mean  │ 95 % interval"
    return Text.assemble(
        (score, MEAN_STYLE),
        accuracy if len(score + accuracy) <= width else "",
        "\n",
        found,
        (marks if len(found + marks) <= width else "", "dim"),
        no_wrap=True,
    )


def _chart(points: Sequence[RoundPoint], width: int, height: int) -> Text:
    shown = _thinned(points, max(4, width - LABEL_WIDTH - 2))
    means = [one.score.value for one in shown]
    spread = _SHOWN_SPREAD * max(max(means) - min(means), 0.05)
    low, high = min(means) - spread, max(means) + spread
    ends = [end for one in shown for end in (one.score.low, one.score.high)]
    y = Axis.around([*means, *(end for end in ends if low <= end <= high)], least=0.02)
    chart = Chart(width, height, Axis(shown[0].round, shown[-1].round), y)
    for one in shown:
        chart.bar(one.round, one.score.low, one.score.high, INTERVAL_STYLE)
    for one, after in pairwise(shown):
        _join(chart, one, after)
    for one in shown:
        chart.put(one.round, one.score.value, "●", MEAN_STYLE)
    first, last = shown[0].round + 1, shown[-1].round + 1
    return chart.text(f"round {first}", f"{last}" if last > first else "")


def _join(chart: Chart, one: RoundPoint, after: RoundPoint) -> None:
    """Dots between two means."""
    begin, end = chart.column(one.round), chart.column(after.round)
    for column in range(begin + 1, end):
        share = (column - begin) / (end - begin)
        x = one.round + share * (after.round - one.round)
        y = one.score.value + share * (after.score.value - one.score.value)
        chart.put(x, y, "·", MEAN_STYLE)


def _thinned(points: Sequence[RoundPoint], columns: int) -> list[RoundPoint]:
    """At most one round per column, the newest always."""
    step = max(1, math.ceil(len(points) / columns))
    return list(reversed(points[::-1][::step]))
