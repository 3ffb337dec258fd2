"""The look of pictures: colours, figures, axes, and PNG files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from esper.plotting.numbers import short_number
from esper.storage.atomic import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI: Final = 110
INK: Final = "#222222"
FAINT: Final = "#8a8a8a"
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#56b4e9", "#e69f00")
"""Okabe-Ito palette, distinguishable for colour-blind readers; without yellow, which fades."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
LOG_FROM: Final = 3.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""


def literal_text() -> AbstractContextManager[None]:
    """Texts made inside the block may contain dollar signs."""
    from matplotlib import rc_context

    return rc_context({"text.parse_math": False})


def new_figure(size: tuple[float, float], title: str) -> Figure:
    """A white figure of `size` inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13, fontweight="bold", color=INK)
    return figure


def style_axes(axes: Axes, title: str) -> None:
    """Title on the left, a light grid, no frame."""
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def marker_style(place: int) -> dict[str, Any]:
    """Colour and marker of the contender at a place, the same in every panel."""
    shape = MARKERS[place % len(MARKERS)]
    return {
        "marker": shape,
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": "none",
        "markersize": 11 if shape in "*PX" else 8,
        "markeredgecolor": "white",
        "markeredgewidth": 0.7,
    }


def scale_cost_axis(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic x axis with plain numbers at 1, 2 and 5 of each decade, if values differ by
    `LOG_FROM` or more."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    if min(values) <= 0 or max(values) / min(values) < LOG_FROM:
        return
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))


def percent_axis(axes: Axes) -> None:
    """Shares on the y axis as per cent."""
    from matplotlib.ticker import FuncFormatter

    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))


def write_png(path: Path, figure: Figure) -> None:
    """Write the figure, whole or not at all; equal figures give equal bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": "esper"})
    write_atomic(path, buffer.getvalue())
