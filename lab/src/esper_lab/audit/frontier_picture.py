"""Picture for practitioners: accuracy against size, and who finds good networks at what cost.

One panel per price: every topology tried, the frontier of fixed networks, and what each way of
choosing picks on average. A table below gives accuracy, size and compute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from esper.leyline.errors import EsperError
from esper.plotting.numbers import short_number
from esper.plotting.pareto import frontier
from esper_lab.audit.picks import SEARCH, SHOWN, Pick, Picks
from esper_lab.figures.labels import LabelStyle, label_points, marker_boxes, shorten_label
from esper_lab.figures.style import (
    FAINT,
    INK,
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

PANEL_INCHES: Final = (4.2, 3.9)
ROW_INCHES: Final = 0.27
LABEL_COLUMNS: Final = 24
"""Characters of a line of a label."""
SAME_PIXELS: Final = 11.0
"""Marks closer than this share a label, and are drawn inside each other."""
FLOOR_SHARE: Final = 0.6
"""How far below the marks and the frontier topologies are drawn where they are, as a share of
their range."""
MARK_SIZES: Final = (12.5, 9.0, 6.5, 5.0)
"""Of marks inside each other, in points; further ones have the last size."""
PRICE_WORDS: Final = {1: ("the price",), 2: ("low price", "high price"),
                      3: ("low price", "middle price", "high price")}  # fmt: skip
NOTES: Final = {
    "table": "one network per price",
    "regression": "network predicted before training",
    "patience": "regression; stops when gains do not pay",
    "predict": "predicts network and when to stop",
    "best": "knows the best network (yardstick)",
}
"""What rows of the table are, in a few words."""
PLACES: Final = tuple(
    (reach * x, reach * y)
    for reach in (9.0, 16.0, 26.0, 38.0)
    for x, y in ((1, 0.6), (1, -0.6), (-1, 0.6), (-1, -0.6), (0, 1.2), (0, -1.2), (1.2, 0))
)
"""Offsets of a label from its mark, nearest first."""
DISTANCE_COST: Final = 6.0
"""Pixels that a label may cover rather than be one point further away from its mark."""
FAR_PLACES: Final = (
    *PLACES,
    *((-1.2 * reach, 0.0) for reach in (9.0, 16.0, 26.0)),
    *(
        (reach * x, reach * y)
        for reach in (54.0, 74.0)
        for x in (1, -1)
        for y in (0.2, 0.6, 1, -0.2, -0.6, -1)
    ),
)
"""Offsets where live policies crowd the panels."""
CROWDED_COST: Final = 1.5
"""`DISTANCE_COST` there."""


def draw_frontier(path: Path, found: Picks, extra: Sequence[Pick] = ()) -> None:
    """Write the picture as a PNG; `extra`: picks of other policies, trained live for instance.

    A pick is drawn at the price nearest to its own, one without a price at all of them.
    """
    if not np.isfinite(found.test_K).any():
        raise EsperError(f"picture of {found.task}: no topology was recorded in every context")
    with literal_text():
        write_png(path, frontier_figure(found, extra))


def frontier_figure(found: Picks, extra: Sequence[Pick] = ()) -> Figure:
    """The figure of `draw_frontier`."""
    by_price = _by_price(found.prices, (*found.picks, *extra))
    names = list(dict.fromkeys(pick.name for pick in (*found.picks, *extra)))
    count, rows = len(found.prices), ROW_INCHES * (len(names) + 4.0)
    width = max(9.0, PANEL_INCHES[0] * count)
    figure = new_figure(
        (width, PANEL_INCHES[1] + rows + 0.5),
        f"{found.task}: how accurate, how large, at what cost",
    )
    halves = figure.subfigures(2, 1, squeeze=False, height_ratios=(PANEL_INCHES[1] + 0.3, rows))
    above, below = halves[:, 0]
    panels = above.subplots(1, count, sharex=True, sharey=True, squeeze=False)[0]
    floor = _floor(found, [*found.picks, *extra])
    words = PRICE_WORDS.get(count, tuple(f"price {price:.2g}" for price in found.prices))
    for axes, price, word in zip(panels, found.prices, words, strict=True):
        _draw_topologies(axes, found, floor)
        marks = by_price[price]
        axes.plot([p.params for p in marks], [p.test for p in marks], alpha=0.0)  # for the limits
        gain = 100 * price * found.doubling
        style_axes(axes, f"{word[0].upper()}{word[1:]}: twice the size must gain {gain:.2g} points")
        axes.set_xlabel("parameters")
    panels[0].set_ylabel("test accuracy")
    _draw_table(below.subplots(), found, names, by_price, words)
    figure.draw_without_rendering()  # computes the layout, so that marks have pixel positions
    for axes, price in zip(panels, found.prices, strict=True):
        how = _label_style(axes, found, crowded=bool(extra))
        key = _key(found, floor) if axes is panels[0] else ""
        _draw_picks(axes, found, by_price[price], names, how, key)
    return figure


def _floor(found: Picks, picks: Sequence[Pick]) -> float:
    """Accuracy below which topologies are drawn at the edge, so that one that fails to train does
    not squeeze all others into a line."""
    joined = frontier(found.params_K.tolist(), found.test_K.tolist())
    shown = [*found.test_K[joined].tolist(), found.test_K[0], *(pick.test for pick in picks)]
    low, high = min(shown), max(shown)
    return float(low - FLOOR_SHARE * (high - low))


def _key(found: Picks, floor: float) -> str:
    """What dots, line and triangles are."""
    lines = ["dots: all networks tried", "dashed: best fixed network of each size"]
    if (found.test_K < floor).any():
        lines.append("triangles: far less accurate")
    return "\n".join(lines)


def _by_price(prices: Sequence[float], picks: Sequence[Pick]) -> dict[float, list[Pick]]:
    """Picks of each panel."""
    found: dict[float, list[Pick]] = {price: [] for price in prices}
    for pick in picks:
        places = list(prices)
        if pick.price is not None:
            own = math.log(pick.price)
            places = [min(prices, key=lambda price: abs(math.log(price) - own))]
        for place in places:
            found[place].append(pick)
    return found


# ---- panels ------------------------------------------------------------------------------------


def _draw_topologies(axes: Axes, found: Picks, floor: float) -> None:
    """Every topology, and the line of those that no smaller one reaches."""
    params_K, test_K = found.params_K, found.test_K
    size = 4.5 if len(params_K) <= 64 else 3.0
    low_K = test_K < floor
    for marker, chosen_K in (("o", ~low_K), ("v", low_K)):
        height = np.maximum(test_K[chosen_K], floor)
        axes.plot(params_K[chosen_K], height, marker, color="#b8b8b8", markersize=size,
                  markeredgewidth=0, zorder=1)  # fmt: skip
    joined = frontier(params_K.tolist(), test_K.tolist())
    edge = max(float(params_K.max()), *(pick.params for pick in found.picks))
    x = [*params_K[joined].tolist(), edge]
    y = [*test_K[joined].tolist(), float(test_K[joined[-1]])]
    axes.step(x, y, where="post", color=FAINT, linewidth=1.3, linestyle="--", zorder=1)
    scale_cost_axis(axes, params_K.tolist())
    percent_axis(axes)
    axes.margins(x=0.09, y=0.12)


def _label_style(axes: Axes, found: Picks, crowded: bool) -> LabelStyle:
    """How labels of a panel are placed."""
    places, cost = (FAR_PLACES, CROWDED_COST) if crowded else (PLACES, DISTANCE_COST)
    return LabelStyle(places, 7.5, _line_boxes(axes, found), cost, leader_from=18.0)


def _draw_picks(
    axes: Axes,
    found: Picks,
    picks: Sequence[Pick],
    names: Sequence[str],
    how: LabelStyle,
    key: str,
) -> None:
    """Marks of a panel with their labels; `key`: what else is drawn."""
    at = [(pick.params, pick.test) for pick in picks]
    groups = _near(axes, at)
    for group in groups:
        first = 1 if len(group) == 1 else 0
        for depth, i in enumerate(group, first):
            style = _mark(_place(picks[i].name, names), picks[i].price is None)
            style["markersize"] = MARK_SIZES[min(depth, len(MARK_SIZES) - 1)]
            axes.plot([at[i][0]], [at[i][1]], zorder=4 + 0.1 * depth, **style)
    centres = [tuple(np.mean([at[i] for i in group], axis=0).tolist()) for group in groups]
    labels = [_joined([picks[i].name for i in group]) for group in groups]
    taken = marker_boxes(axes, at)
    spots, words = list(centres), list(labels)
    if key:
        host_at = float(found.params_K[0]), float(found.test_K[0])
        taken += marker_boxes(axes, [host_at])
        spots.append(host_at)
        words.append("host")
        text = axes.text(
            0.985, 0.02, key,
            transform=axes.transAxes, ha="right", va="bottom", fontsize=7.5, color=FAINT,
        )  # fmt: skip
        taken.append(text.get_window_extent())
    label_points(axes, spots, words, taken, how)


def _place(name: str, names: Sequence[str]) -> int:
    """Number of a name's mark; built-in ones have the same in every picture."""
    if name.startswith(SEARCH):
        return len(SHOWN)
    if name in SHOWN:
        return SHOWN.index(name)
    others = [word for word in names if word not in SHOWN and not word.startswith(SEARCH)]
    return len(SHOWN) + 1 + others.index(name)


def _mark(place: int, hollow: bool) -> dict[str, Any]:
    """Colour and marker of a name; hollow for what does not depend on the price."""
    style = marker_style(place)
    if hollow:
        style |= {"markerfacecolor": "white", "markeredgecolor": style["color"]}
        style |= {"markeredgewidth": 1.6}
    return style


def _near(axes: Axes, at: Sequence[tuple[float, float]]) -> list[list[int]]:
    """Marks by number, those that would cover each other in one group."""
    groups: list[list[int]] = []
    pixels = [axes.transData.transform(point) for point in at]
    for i, spot in enumerate(pixels):
        for group in groups:
            if any(math.dist(spot, pixels[j]) < SAME_PIXELS for j in group):
                group.append(i)
                break
        else:
            groups.append([i])
    return groups


def _joined(names: Sequence[str]) -> str:
    """Names in lines of up to `LABEL_COLUMNS` characters.

    >>> _joined(["table", "regression", "closed loop"])
    'table, regression,\\nclosed loop'
    """
    lines = [""]
    for i, name in enumerate(names):
        word = shorten_label(name, LABEL_COLUMNS) + ("," if i + 1 < len(names) else "")
        if lines[-1] and len(lines[-1]) + 1 + len(word) > LABEL_COLUMNS:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def _line_boxes(axes: Axes, found: Picks) -> list[Bbox]:
    """Boxes of the steps of the frontier, which labels should not cover."""
    from matplotlib.transforms import Bbox

    joined = frontier(found.params_K.tolist(), found.test_K.tolist())
    at = [(float(found.params_K[k]), float(found.test_K[k])) for k in joined]
    corners = [at[0]]
    for (_, before), (x, y) in pairwise(at):
        corners += [(x, before), (x, y)]
    pixels = axes.transData.transform(corners)
    return [
        Bbox([np.minimum(one, two), np.maximum(one, two)]).padded(2.0)
        for one, two in pairwise(pixels)
    ]


# ---- table -------------------------------------------------------------------------------------

_NAME_AT: Final = 0.02
_NOTE_AT: Final = 0.105
_FIRST_AT: Final = 0.345
"""Places of the columns, as shares of the width; notes begin further right after long names."""
_NAME_CHARS: Final = 22
"""Longest name in the table."""
_CHAR_INCHES: Final = 0.078
"""Width of a character of a name."""
_HEADS: Final = ("accuracy", "parameters", "compute")


def _draw_table(
    axes: Axes,
    found: Picks,
    names: Sequence[str],
    by_price: dict[float, list[Pick]],
    words: Sequence[str],
) -> None:
    """One row per way of choosing; its mark is the legend of the panels."""
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(len(names) + 1.2, -2.2)
    group = (1.0 - _FIRST_AT) / len(words)
    for place, word in enumerate(words):
        left = _FIRST_AT + place * group
        centre = left + 0.55 * group
        axes.text(centre, -1.6, word, fontsize=9, fontweight="bold", ha="center", color=INK)
        axes.plot([left + 0.1 * group, left + group], [-1.4, -1.4], color=FAINT, linewidth=0.8)
        for i, head in enumerate(_HEADS):
            at = left + (i + 1) * group / len(_HEADS)
            axes.text(at, -0.75, head, fontsize=8, ha="right", color=FAINT)
    axes.axhline(-0.5, color="#cccccc", linewidth=0.8)
    note_at = _note_at(names, axes.figure.bbox.width / axes.figure.dpi)
    for row in range(len(names)):
        _draw_row(axes, row, names, list(by_price.values()), group, note_at)
    note = (
        f"A mark above the dashed line beats every fixed network of its size. Means over "
        f"{found.contexts} contexts, {found.hosts} hosts each (parameters: geometric).\n"
        f"compute: all training, in training runs of the host. Twice the size: of parameters "
        f"and multiply-accumulates."
    )
    axes.text(_NAME_AT - 0.02, len(names) + 1.1, note, fontsize=8, color=FAINT, va="bottom")


def _note_at(names: Sequence[str], inches: float) -> float:
    """Where notes begin, right of the longest name."""
    longest = max(len(shorten_label(name, _NAME_CHARS)) for name in names)
    return max(_NOTE_AT, _NAME_AT + 0.01 + longest * _CHAR_INCHES / inches)


def _draw_row(
    axes: Axes,
    row: int,
    names: Sequence[str],
    panels: Sequence[Sequence[Pick]],
    group: float,
    note_at: float,
) -> None:
    name = names[row]
    held = [[pick for pick in picks if pick.name == name] for picks in panels]
    hollow = all(pick.price is None for picks in held for pick in picks)
    axes.plot([_NAME_AT - 0.01], [row], clip_on=False, **_mark(_place(name, names), hollow))
    axes.text(
        _NAME_AT + 0.005, row, shorten_label(name, _NAME_CHARS), fontsize=9, va="center", color=INK
    )
    note = next((pick.note for picks in held for pick in picks), "") or NOTES.get(name, "")
    if name.startswith(SEARCH):
        note = f"search over {name.removeprefix(SEARCH)} networks"
    axes.text(note_at, row, note, fontsize=8, va="center", color=FAINT)
    for place, picks in enumerate(held):
        if not picks:
            continue
        cells = (
            f"{100 * np.mean([pick.test for pick in picks]):.1f} %",
            short_number(float(np.mean([pick.params for pick in picks]))),
            f"{np.mean([pick.compute for pick in picks]):.1f}",
        )
        for i, cell in enumerate(cells):
            at = _FIRST_AT + (place + (i + 1) / len(cells)) * group
            axes.text(at, row, cell, fontsize=8.5, ha="right", va="center", color=INK)
