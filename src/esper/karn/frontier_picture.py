"""Plot of a comparison: cost-accuracy frontiers and paired differences.

Top: accuracy against parameters and against training FLOPs, one point with intervals per policy,
Pareto-optimal ones connected. Bottom: difference of each policy to the reference, paired by host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from esper.leyline.errors import EsperError
from esper.leyline.statistics import Estimate
from esper.plotting.labels import label_points, marker_boxes, shorten_label
from esper.plotting.style import (
    COLOURS,
    FAINT,
    frontier,
    literal_text,
    marker_style,
    new_figure,
    percent_axis,
    scale_cost_axis,
    style_axes,
    write_png,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

WIDTH_INCHES: Final = 11.5
TOP_INCHES: Final = 4.9
ROW_INCHES: Final = 0.36
"""Height of a policy's row in the lower panel."""
MAX_POINT_LABEL: Final = 22
"""Longest label beside a point, in characters."""


@dataclass(frozen=True, slots=True)
class PolicyPoint:
    """Figures of one policy."""

    label: str
    accuracy: Estimate
    """0..1."""
    parameters: Estimate
    flops_ratio: Estimate
    """Training FLOPs relative to the host."""
    difference: Estimate | None
    """Score difference to the reference; None for the reference itself."""
    improvement: Estimate | None
    """Probability of improvement over the reference."""


def draw_frontier(path: Path, points: Sequence[PolicyPoint], title: str, note: str) -> None:
    """Write the plot as a PNG; the first point is the reference, `note` is the footer."""
    if not points:
        raise EsperError("a comparison without policies: nothing to draw")
    with literal_text():
        write_png(path, _figure(points, title, note))


def _figure(points: Sequence[PolicyPoint], title: str, note: str) -> Figure:
    rows = ROW_INCHES * (len(points) + 2.2)
    figure = new_figure((WIDTH_INCHES, TOP_INCHES + rows + 0.4), title)
    figure.supxlabel(note, fontsize=8, color=FAINT)
    halves = figure.subfigures(2, 1, squeeze=False, height_ratios=(TOP_INCHES, rows), hspace=0.03)
    above, below = halves[:, 0]
    left, right = above.subplots(1, 2, sharey=True)
    parameters = [point.parameters for point in points]
    flops = [point.flops_ratio for point in points]
    _draw_cost(left, points, parameters, "parameters")
    _draw_cost(right, points, flops, "training FLOPs / those of the host")
    left.set_ylabel("test accuracy")
    _draw_differences(below.subplots(), points)
    figure.draw_without_rendering()  # computes the layout, so that points have pixel positions
    for axes, costs in ((left, parameters), (right, flops)):
        _label_points(axes, points, costs)
    return figure


def _draw_cost(
    axes: Axes, points: Sequence[PolicyPoint], costs: Sequence[Estimate], words: str
) -> None:
    joined = frontier([cost.value for cost in costs], [point.accuracy.value for point in points])
    steps = [(costs[i].value, points[i].accuracy.value) for i in joined]
    axes.step(
        [x for x, _ in steps], [y for _, y in steps],
        where="post", color=FAINT, linewidth=1.2, linestyle="--", zorder=1,
    )  # fmt: skip
    for place, (point, cost) in enumerate(zip(points, costs, strict=True)):
        _draw_point(axes, place, (cost.value, point.accuracy.value), cost, point.accuracy)
    scale_cost_axis(axes, [cost.value for cost in costs])
    percent_axis(axes)
    axes.set_xlabel(words)
    axes.margins(x=0.08, y=0.1)
    style_axes(axes, f"Accuracy against {words.split(' /')[0]}")


def _label_points(axes: Axes, points: Sequence[PolicyPoint], costs: Sequence[Estimate]) -> None:
    """Place labels beside the points, where they overlap least."""
    at = [(c.value, point.accuracy.value) for c, point in zip(costs, points, strict=True)]
    taken = marker_boxes(axes, at)
    for point, cost in zip(points, costs, strict=True):
        taken += _bars(axes, cost, point.accuracy)
    labels = [shorten_label(point.label, MAX_POINT_LABEL) for point in points]
    label_points(axes, at, labels, taken)


def _bars(axes: Axes, cost: Estimate, worth: Estimate) -> list[Bbox]:
    """Return the bounding boxes of a point's intervals; empty if they are unknown."""
    from matplotlib.transforms import Bbox

    ends = []
    if _error_bars(cost):
        ends.append(((cost.low, worth.value), (cost.high, worth.value)))
    if _error_bars(worth):
        ends.append(((cost.value, worth.low), (cost.value, worth.high)))
    pad = 1.5 * axes.figure.dpi / 72
    return [Bbox(axes.transData.transform(corners)).padded(pad) for corners in ends]


def _draw_differences(axes: Axes, points: Sequence[PolicyPoint]) -> None:
    """Draw one row per policy, which is also the legend of the panels above."""
    axes.axvline(0.0, color=FAINT, linewidth=1.0)
    aside = axes.get_yaxis_transform()
    for place, point in enumerate(points):
        difference = point.difference or Estimate(0.0, math.nan, math.nan)
        _draw_point(axes, place, (difference.value, place), difference, None)
        axes.plot([-0.018], [place], transform=aside, clip_on=False, **marker_style(place))
        axes.text(1.012, place, _row_text(point), transform=aside, va="center", fontsize=8.5)
    axes.set_yticks(range(len(points)), [shorten_label(point.label) for point in points])
    axes.tick_params(axis="y", length=0, pad=20)
    axes.set_ylim(len(points) - 0.4, -0.6)
    axes.margins(x=0.08)
    axes.set_xlabel(f"score minus that of {shorten_label(points[0].label)}, paired by host")
    style_axes(axes, "Difference to the reference (mean over hosts, 95 % interval of Student's t)")


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
    axes.plot([at[0]], [at[1]], zorder=4, **marker_style(place))


def _error_bars(estimate: Estimate) -> list[list[float]] | None:
    """Return the error bar lengths; None if the interval is unknown."""
    if math.isnan(estimate.low) or math.isnan(estimate.high):
        return None
    down, up = estimate.value - estimate.low, estimate.high - estimate.value
    return [[max(0.0, down)], [max(0.0, up)]]
