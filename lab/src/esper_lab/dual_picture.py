"""Plot of two controllers trained side by side: both scores, and their difference.

Shape letters: U updates, N pairs (members of every training seed).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from esper.leyline.arrays import ArrayStruct, Doubles
from esper.leyline.errors import EsperError
from esper.leyline.statistics import t_interval
from esper_lab.figures.style import INK, new_figure, write_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE_INCHES: Final = (11.5, 4.4)
COLOURS: Final = ("#0b6e99", "#c1571a")
"""Colours of a and b."""


@dataclass(frozen=True, slots=True, eq=False)
class DualCurves(ArrayStruct):
    """Scores of two controllers at the same updates and members."""

    name_a: str
    name_b: str
    score_a_UN: Doubles
    score_b_UN: Doubles

    def __post_init__(self) -> None:
        if min(self.sizes().values()) < 1:
            raise EsperError("DualCurves without updates or members: nothing to draw")


def draw_dual(path: Path, curves: DualCurves, title: str) -> None:
    """Write the plot as a PNG."""
    write_png(path, _figure(curves, title))


def _figure(curves: DualCurves, title: str) -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(SIZE_INCHES, title)
    left, right = figure.subplots(1, 2, sharex=True)
    named = ((curves.name_a, curves.score_a_UN), (curves.name_b, curves.score_b_UN))
    for (name, score_UN), colour in zip(named, COLOURS, strict=True):
        _draw(left, score_UN, colour, name)
    left.set_ylabel("score")
    left.legend(loc="best", fontsize=8, framealpha=0.85, edgecolor="none")
    _titled(left, "Score at the end of an episode, while learning")
    _draw(right, curves.score_b_UN - curves.score_a_UN, INK, "")
    right.axhline(0.0, color="#999999", linewidth=0.8)
    right.set_ylabel("difference of score")
    _titled(right, f"{curves.name_b} minus {curves.name_a}, paired")
    for axes in (left, right):
        axes.set_xlabel("update")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(color="#dddddd", linewidth=0.6)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return figure


def _draw(axes: Axes, values_UN: Doubles, colour: str, label: str) -> None:
    x = np.arange(1, len(values_UN) + 1)
    mean_U, low_U, high_U = t_interval(values_UN.T)
    axes.fill_between(x, low_U, high_U, color=colour, alpha=0.2, linewidth=0)
    marker = "o" if len(x) == 1 else ""
    axes.plot(x, mean_U, color=colour, linewidth=1.8, label=label, marker=marker)


def _titled(axes: Axes, title: str) -> None:
    axes.set_title(f"{title} (mean, 95 % over members)", fontsize=9.5, loc="left", color=INK)
