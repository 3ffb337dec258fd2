"""Labels beside points, where they overlap least."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from esper_lab.figures.style import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox, BboxBase

MAX_LABEL: Final = 42
"""Longest label in characters; longer ones are shortened in the middle."""
MARKER_POINTS: Final = 6.0
"""Half the side of a marker's bounding box."""
PLACES: Final = (
    (6.0, 4.0), (-6.0, 4.0), (6.0, -4.0), (-6.0, -4.0), (8.0, 0.0), (-8.0, 0.0),
    (0.0, 9.0), (0.0, -9.0), (7.0, 15.0), (7.0, -15.0), (-7.0, 15.0), (-7.0, -15.0),
)  # fmt: skip
"""Offsets of a label from its point in points; the first free one is used."""


def shorten_label(label: str, longest: int = MAX_LABEL) -> str:
    """Shorten a label in the middle.

    >>> shorten_label("static-final:r0c0=depthwise", 12)
    'stati…thwise'
    """
    if len(label) <= longest:
        return label
    tail = longest // 2
    return f"{label[: longest - tail - 1]}…{label[-tail:]}"


def marker_boxes(axes: Axes, at: Sequence[tuple[float, float]]) -> list[Bbox]:
    """Bounding boxes of markers at points of the data, in pixels; the layout must be known."""
    from matplotlib.transforms import Bbox

    half = MARKER_POINTS * axes.figure.dpi / 72
    spots = [axes.transData.transform(point) for point in at]
    return [Bbox.from_bounds(x - half, y - half, 2 * half, 2 * half) for x, y in spots]


@dataclass(frozen=True, slots=True)
class LabelStyle:
    """How labels are placed."""

    places: Sequence[tuple[float, float]] = PLACES
    """Offsets of a label from its point in points, the best first."""
    size: float = 7.5
    soft: Sequence[Bbox] = ()
    """Boxes in pixels that are better left clear."""
    distance_cost: float = 0.0
    """Pixels of overlap that a label may have rather than be one point further away."""
    leader_from: float = math.inf
    """Distance in points from which a line leads to the label."""


def label_points(
    axes: Axes,
    at: Sequence[tuple[float, float]],
    labels: Sequence[str],
    taken: Sequence[Bbox],
    style: LabelStyle | None = None,
) -> list[Annotation]:
    """Place labels beside points of the data; `taken`: boxes in pixels to keep clear."""
    from matplotlib.patheffects import withStroke

    style = style or LabelStyle()
    filled, texts = list(taken), []
    for point, label in zip(at, labels, strict=True):
        x, y = axes.transData.transform(point)
        text = axes.annotate(
            label, (x, y), style.places[0], xycoords="figure pixels", textcoords="offset points",
            fontsize=style.size, color=INK, zorder=5,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )  # fmt: skip
        best, least = style.places[0], math.inf
        for place in style.places:
            move_label(text, place)
            cost = _cost(text, axes, filled, style) + style.distance_cost * math.hypot(*place)
            if cost < least:
                best, least = place, cost
        move_label(text, best)
        filled.append(text.get_window_extent())
        texts.append(text)
        if math.hypot(*best) >= style.leader_from:
            _draw_leader(axes, (x, y), best)
    return texts


def _cost(text: Annotation, axes: Axes, filled: Sequence[Bbox], style: LabelStyle) -> float:
    """Pixels that a label covers, those outside of the axes counted more."""
    box = text.get_window_extent()
    covered = sum(overlap(box, other) for other in filled)
    outside = box.width * box.height - overlap(box, axes.bbox)
    return covered + 3 * outside + 0.3 * sum(overlap(box, other) for other in style.soft)


def _draw_leader(axes: Axes, start: tuple[float, float], place: tuple[float, float]) -> None:
    """A thin line from a point in pixels to its label."""
    from matplotlib.transforms import IdentityTransform

    pixels = axes.figure.dpi / 72
    end = start[0] + place[0] * pixels, start[1] + place[1] * pixels
    axes.plot([start[0], end[0]], [start[1], end[1]], color=FAINT, linewidth=0.7, zorder=3,
              transform=IdentityTransform(), scalex=False, scaley=False)  # fmt: skip


def move_label(text: Annotation, place: tuple[float, float]) -> None:
    """Move a label to an offset from its point, growing away from it."""
    x, y = place
    text.set_position(place)
    text.set_horizontalalignment("center" if x == 0 else "left" if x > 0 else "right")
    text.set_verticalalignment("center" if y == 0 else "bottom" if y > 0 else "top")


def overlap(one: BboxBase, other: BboxBase) -> float:
    """Return the area that two boxes share, in pixels."""
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return float(max(0.0, width) * max(0.0, height))
