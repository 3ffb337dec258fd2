"""Plot of a comparison: cost-accuracy frontiers and paired differences.

Top: accuracy against parameters and against training FLOPs, one point with intervals per policy,
Pareto-optimal ones connected. Bottom: difference of each policy to the reference, paired by host.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from esper.leyline.errors import EsperError
from esper.leyline.statistics import Estimate
from esper.storage.atomic import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox, BboxBase

DPI: Final = 110
WIDTH_INCHES: Final = 11.5
TOP_INCHES: Final = 4.9
ROW_INCHES: Final = 0.36
"""Height of a policy's row in the lower panel."""
INK: Final = "#222222"
FAINT: Final = "#8a8a8a"
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#56b4e9", "#e69f00")
"""Okabe-Ito palette, distinguishable for colour-blind readers; without yellow, which fades."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
LONGEST: Final = 42
"""Longest label in characters; longer ones are shortened in the middle."""
LONGEST_AT_POINT: Final = 22
"""The same beside a point, where there is less room."""
MARKER_POINTS: Final = 6.0
"""Half the side of a marker's bounding box."""
PLACES: Final = (
    (6.0, 4.0), (-6.0, 4.0), (6.0, -4.0), (-6.0, -4.0), (8.0, 0.0), (-8.0, 0.0),
    (0.0, 9.0), (0.0, -9.0), (7.0, 15.0), (7.0, -15.0), (-7.0, 15.0), (-7.0, -15.0),
)  # fmt: skip
"""Offsets of a label from its point in points; the first free one is used."""
LOG_FROM: Final = 3.0
"""Ratio of the largest to the smallest cost from which the axis is logarithmic."""


@dataclass(frozen=True, slots=True)
class PolicyPoint:
    """Figures of one policy."""

    label: str
    accuracy: Estimate
    """0..1."""
    parameters: Estimate
    flops_ratio: Estimate
    """Training FLOPs relative to the host alone."""
    difference: Estimate | None
    """Score difference to the reference; None for the reference itself."""
    improvement: Estimate | None
    """Probability of improvement over the reference."""


def draw_frontier(path: Path, points: Sequence[PolicyPoint], title: str, note: str) -> None:
    """Write the plot as a PNG; the first point is the reference, `note` is the footer."""
    if not points:
        raise EsperError("a comparison without policies: nothing to draw")
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False}):  # labels may contain dollar signs
        write_atomic(path, _render(_figure(points, title, note)))


def frontier(cost: Sequence[float], worth: Sequence[float]) -> list[int]:
    """Return the indices of the Pareto-optimal points, cheapest first.

    >>> frontier([1.0, 2.0, 3.0, 4.0], [0.1, 0.5, 0.4, 0.9])
    [0, 1, 3]
    """
    order = sorted(range(len(cost)), key=lambda i: (cost[i], -worth[i]))
    found: list[int] = []
    for i in order:
        best = worth[found[-1]] if found else -math.inf
        equal = found and (cost[i], worth[i]) == (cost[found[-1]], best)
        if worth[i] > best or equal:
            found.append(i)
    return found


def shorten_label(label: str, longest: int = LONGEST) -> str:
    """Shorten a label in the middle.

    >>> shorten_label("static-final:r0c0=depthwise", 12)
    'stati…thwise'
    """
    if len(label) <= longest:
        return label
    tail = longest // 2
    return f"{label[: longest - tail - 1]}…{label[-tail:]}"


def _figure(points: Sequence[PolicyPoint], title: str, note: str) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = ROW_INCHES * (len(points) + 2.2)
    size = (WIDTH_INCHES, TOP_INCHES + rows + 0.4)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13, fontweight="bold", color=INK)
    figure.supxlabel(note, fontsize=8, color=FAINT)
    halves = figure.subfigures(2, 1, squeeze=False, height_ratios=(TOP_INCHES, rows), hspace=0.03)
    above, below = halves[:, 0]
    left, right = above.subplots(1, 2, sharey=True)
    parameters = [point.parameters for point in points]
    flops = [point.flops_ratio for point in points]
    _draw_cost(left, points, parameters, "parameters")
    _draw_cost(right, points, flops, "training FLOPs / those of the host alone")
    left.set_ylabel("test accuracy")
    _draw_differences(below.subplots(), points)
    figure.draw_without_rendering()  # computes the layout, so that points have pixel positions
    for axes, costs in ((left, parameters), (right, flops)):
        _label_points(axes, points, costs)
    return figure


def _draw_cost(
    axes: Axes, points: Sequence[PolicyPoint], costs: Sequence[Estimate], words: str
) -> None:
    from matplotlib.ticker import FuncFormatter

    joined = frontier([cost.value for cost in costs], [point.accuracy.value for point in points])
    steps = [(costs[i].value, points[i].accuracy.value) for i in joined]
    axes.step(
        [x for x, _ in steps], [y for _, y in steps],
        where="post", color=FAINT, linewidth=1.2, linestyle="--", zorder=1,
    )  # fmt: skip
    for place, (point, cost) in enumerate(zip(points, costs, strict=True)):
        _draw_point(axes, place, (cost.value, point.accuracy.value), cost, point.accuracy)
    values = [cost.value for cost in costs]
    if min(values) > 0 and max(values) / min(values) >= LOG_FROM:
        _logarithmic(axes)
    axes.yaxis.set_major_formatter(FuncFormatter(_percent))
    axes.set_xlabel(words)
    axes.margins(x=0.08, y=0.1)
    _style_axes(axes, f"Accuracy against {words.split(' /')[0]}")


def _logarithmic(axes: Axes) -> None:
    """Use a logarithmic axis with plain numbers at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_number))


def _label_points(axes: Axes, points: Sequence[PolicyPoint], costs: Sequence[Estimate]) -> None:
    """Place labels beside the points, where they overlap least."""
    from matplotlib.patheffects import withStroke
    from matplotlib.transforms import Bbox

    pixels = axes.figure.dpi / 72
    spots = [
        axes.transData.transform((cost.value, point.accuracy.value))
        for cost, point in zip(costs, points, strict=True)
    ]
    half = MARKER_POINTS * pixels
    taken = [Bbox.from_bounds(x - half, y - half, 2 * half, 2 * half) for x, y in spots]
    for point, cost in zip(points, costs, strict=True):
        taken += _bars(axes, cost, point.accuracy, pixels)
    for point, spot in zip(points, spots, strict=True):
        text = axes.annotate(
            shorten_label(point.label, LONGEST_AT_POINT), (spot[0], spot[1]), PLACES[0],
            xycoords="figure pixels", textcoords="offset points", fontsize=7.5, color=INK, zorder=5,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )  # fmt: skip
        best, least = PLACES[0], math.inf
        for place in PLACES:
            _move_label(text, place)
            box = text.get_window_extent()
            covered = sum(_overlap(box, other) for other in taken)
            outside = box.width * box.height - _overlap(box, axes.bbox)
            if covered + 3 * outside < least:
                best, least = place, covered + 3 * outside
        _move_label(text, best)
        taken.append(text.get_window_extent())


def _bars(axes: Axes, cost: Estimate, worth: Estimate, pixels: float) -> list[Bbox]:
    """Return the bounding boxes of a point's intervals; empty if they are unknown."""
    from matplotlib.transforms import Bbox

    ends = []
    if _error_bars(cost):
        ends.append(((cost.low, worth.value), (cost.high, worth.value)))
    if _error_bars(worth):
        ends.append(((cost.value, worth.low), (cost.value, worth.high)))
    return [Bbox(axes.transData.transform(corners)).padded(1.5 * pixels) for corners in ends]


def _move_label(text: Annotation, place: tuple[float, float]) -> None:
    """Move a label to an offset from its point, growing away from it."""
    x, y = place
    text.set_position(place)
    text.set_horizontalalignment("center" if x == 0 else "left" if x > 0 else "right")
    text.set_verticalalignment("center" if y == 0 else "bottom" if y > 0 else "top")


def _overlap(one: BboxBase, other: BboxBase) -> float:
    """Return the area that two boxes share, in pixels."""
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return float(max(0.0, width) * max(0.0, height))


def _draw_differences(axes: Axes, points: Sequence[PolicyPoint]) -> None:
    """Draw one row per policy, which is also the legend of the panels above."""
    axes.axvline(0.0, color=FAINT, linewidth=1.0)
    aside = axes.get_yaxis_transform()
    for place, point in enumerate(points):
        difference = point.difference or Estimate(0.0, math.nan, math.nan)
        _draw_point(axes, place, (difference.value, place), difference, None)
        axes.plot([-0.018], [place], transform=aside, clip_on=False, **_marker_style(place))
        axes.text(1.012, place, _row_text(point), transform=aside, va="center", fontsize=8.5)
    axes.set_yticks(range(len(points)), [shorten_label(point.label) for point in points])
    axes.tick_params(axis="y", length=0, pad=20)
    axes.set_ylim(len(points) - 0.4, -0.6)
    axes.margins(x=0.08)
    axes.set_xlabel(f"score minus that of {shorten_label(points[0].label)}, paired by host")
    _style_axes(axes, "Difference to the reference (mean over hosts, 95 % interval of Student's t)")


def _row_text(point: PolicyPoint) -> str:
    if point.difference is None:
        return "the reference"
    d = point.difference
    spread = "" if math.isnan(d.low) else f" ({d.low:+.3f} to {d.high:+.3f})"
    chance = "" if point.improvement is None else f", P {point.improvement.value:.2f}"
    return f"{d.value:+.3f}{spread}{chance}"


def _draw_point(
    axes: Axes, place: int, at: tuple[float, float], along: Estimate, up: Estimate | None
) -> None:
    """Draw a policy's marker over the intervals of its coordinates."""
    axes.errorbar(
        [at[0]], [at[1]], xerr=_error_bars(along), yerr=_error_bars(up) if up else None, fmt="none",
        ecolor=COLOURS[place % len(COLOURS)], elinewidth=1.6, capsize=3, zorder=3,
    )  # fmt: skip
    axes.plot([at[0]], [at[1]], zorder=4, **_marker_style(place))


def _marker_style(place: int) -> dict[str, Any]:
    """Return colour and marker of a policy, the same in every panel."""
    shape = MARKERS[place % len(MARKERS)]
    return {
        "marker": shape,
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": "none",
        "markersize": 11 if shape in "*PX" else 8,
        "markeredgecolor": "white",
        "markeredgewidth": 0.7,
    }


def _error_bars(estimate: Estimate) -> list[list[float]] | None:
    """Return the error bar lengths; None if the interval is unknown."""
    if math.isnan(estimate.low) or math.isnan(estimate.high):
        return None
    down, up = estimate.value - estimate.low, estimate.high - estimate.value
    return [[max(0.0, down)], [max(0.0, up)]]


def _percent(value: float, _: int) -> str:
    return f"{100 * value:g} %"


def _number(value: float, _: int) -> str:
    return f"{value / 1e6:g}M" if value >= 1e6 else f"{value:,g}"


def _style_axes(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _render(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": "esper"})
    return buffer.getvalue()
