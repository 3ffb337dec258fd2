"""Labels beside points, where they overlap least."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from esper.plotting.style import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox, BboxBase

LONGEST: Final = 42
"""Longest label in characters; longer ones are shortened in the middle."""
MARKER_POINTS: Final = 6.0
"""Half the side of a marker's bounding box."""
PLACES: Final = (
    (6.0, 4.0), (-6.0, 4.0), (6.0, -4.0), (-6.0, -4.0), (8.0, 0.0), (-8.0, 0.0),
    (0.0, 9.0), (0.0, -9.0), (7.0, 15.0), (7.0, -15.0), (-7.0, 15.0), (-7.0, -15.0),
)  # fmt: skip
"""Offsets of a label from its point in points; the first free one is used."""


def shorten_label(label: str, longest: int = LONGEST) -> str:
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


def label_points(
    axes: Axes,
    at: Sequence[tuple[float, float]],
    labels: Sequence[str],
    taken: Sequence[Bbox],
    places: Sequence[tuple[float, float]] = PLACES,
    size: float = 7.5,
) -> list[Annotation]:
    """Place labels beside points of the data; `taken`: boxes in pixels to keep clear."""
    from matplotlib.patheffects import withStroke

    filled, texts = list(taken), []
    for point, label in zip(at, labels, strict=True):
        x, y = axes.transData.transform(point)
        text = axes.annotate(
            label, (x, y), places[0], xycoords="figure pixels", textcoords="offset points",
            fontsize=size, color=INK, zorder=5,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )  # fmt: skip
        best, least = places[0], math.inf
        for place in places:
            move_label(text, place)
            box = text.get_window_extent()
            covered = sum(overlap(box, other) for other in filled)
            outside = box.width * box.height - overlap(box, axes.bbox)
            if covered + 3 * outside < least:
                best, least = place, covered + 3 * outside
        move_label(text, best)
        filled.append(text.get_window_extent())
        texts.append(text)
    return texts


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
