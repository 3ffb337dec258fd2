"""The lineage of a search as a picture: rungs are columns, networks are lanes."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from esper.karn.views.lineage import SHADES, LineageRun
from esper.leyline.errors import shorten
from esper.plotting.html import Markup, markup, tag
from esper.plotting.line_plot import WIDTH, canvas
from esper.plotting.numbers import number

STEP, GAP, LANE, HEAD = 17.0, 30.0, 12.0, 62.0
"""Pixels between runs, between rungs at least, above and below the runs of a lane, of the head."""
SIDE: Final = 130.0
"""Pixels for the names of lanes."""
LEAST: Final = 3
"""Runs beside each other, at least."""
MAX_NAME_CHARS: Final = 19
MAX_HEADED: Final = 9
"""Columns that are headed by a word; of more it is a number."""
MAX_STORIES: Final = 400
"""Runs whose marks say why they were made and ended, so that the page stays small."""
RADIUS: Final = 5.0
BOW: Final = 10.0
STYLE: Final = (
    "".join(
        f".esper-grow .shade-{shade} {{ fill: color-mix(in srgb, var(--front) {share}%, "
        f"var(--page)); }}\n"
        for shade, share in enumerate((6, 26, 48, 72, 100))
    )
    + """.esper-grow .run { stroke: var(--front); stroke-width: 1; }
.esper-grow .run.best { stroke: var(--text); stroke-width: 2.2; }
.esper-grow .run.picked { fill: var(--pick); }
.esper-grow .run.given { stroke: var(--host); stroke-width: 2.5; }
.esper-grow .run.unknown { fill: var(--page); stroke: var(--muted); stroke-dasharray: 2 2; }
.esper-grow .edge { fill: none; stroke: var(--muted); opacity: .45; }
.esper-grow .edge.changed { stroke-dasharray: 1.5 3; }
.esper-grow .edge.picked { fill: none; stroke: var(--pick); stroke-width: 2; opacity: 1; }
.esper-grow .lane { fill: var(--soft); opacity: .6; }
.esper-grow .lost { stroke: var(--host); stroke-width: 2; fill: none; }
"""
)

Place = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where the runs of each rung are."""

    left: dict[int, float]
    width: dict[int, float]
    limit: int
    """Runs beside each other in a lane."""
    refit: float
    """Of the runs that were trained once more."""
    end: float


def lineage_plot(runs: Sequence[LineageRun]) -> Markup:
    """Runs as marks, darker for higher scores, and lines to those that came from them."""
    names = {one.lane: _lane_name(one) for one in runs}
    columns = _columns(runs)
    tops = _tops(runs, columns.limit)
    places = {one.label: _place(one, columns, tops) for one in runs}
    bottom = tops[-1]
    lanes = [
        tag("rect", x=SIDE, y=top, width=columns.end - SIDE, height=below - top, class_="lane")
        for top, below in list(itertools.pairwise(tops))[1::2]
    ]
    titles = [
        tag("text", names[lane], x=0.0,
            y=(tops[lane] + tops[lane + 1]) / 2 + 4, class_="note")
        for lane in sorted(names)
    ]  # fmt: skip
    label = f"{len(runs)} runs by rung and network; the table has them"
    return canvas(
        label,
        bottom + 8,
        _legend(runs),
        *_heads(columns, any(one.is_refit for one in runs)),
        *lanes,
        *titles,
        *_edges(runs, places, columns),
        *(_mark(one, *places[one.label], len(runs) <= MAX_STORIES) for one in runs),
    )


def _lane_name(one: LineageRun) -> str:
    """The name of a network, shorter where there is no room."""
    short = " ".join(part for part in (one.variant, *one.topology) if part)
    fits = len(one.network) <= MAX_NAME_CHARS or not short
    return shorten(one.network if fits else short, MAX_NAME_CHARS)


# ---- places ------------------------------------------------------------------------------------


def _cells(runs: Sequence[LineageRun]) -> Counter[tuple[int, int]]:
    """Runs by rung and lane."""
    return Counter((one.rung, one.lane) for one in runs)


def _columns(runs: Sequence[LineageRun]) -> _Columns:
    """Columns as wide as their fullest lane, in lines of as many runs as there is room for."""
    most: dict[int, int] = {}
    for (rung, _), count in sorted(_cells(runs).items()):
        most[rung] = max(most.get(rung, 0), count)
    more = 1 if any(one.is_refit for one in runs) else 0
    room = WIDTH - SIDE - more * STEP

    def wide(limit: int) -> float:
        return sum(min(count, limit) * STEP for count in most.values())

    fitting = (n for n in range(max(most.values()), LEAST, -1)
               if wide(n) + GAP * (len(most) + more) <= room)  # fmt: skip
    limit = next(fitting, LEAST)
    gap = max(4.0, (room - wide(limit)) / (len(most) + more))
    left, width, at = dict[int, float](), dict[int, float](), SIDE + gap / 2
    for rung, count in most.items():
        left[rung], width[rung] = at, min(count, limit) * STEP
        at += width[rung] + gap
    return _Columns(left, width, limit, at, max(float(WIDTH), at + more * STEP))


def _tops(runs: Sequence[LineageRun], limit: int) -> list[float]:
    """Upper ends of the lanes, and the lower end of the last."""
    lines = dict.fromkeys(range(1 + max(one.lane for one in runs)), 1)
    for (_, lane), count in _cells(runs).items():
        lines[lane] = max(lines[lane], math.ceil(count / limit))
    tops = [HEAD]
    for count in lines.values():
        tops.append(tops[-1] + count * STEP + LANE)
    return tops


def _place(one: LineageRun, columns: _Columns, tops: Sequence[float]) -> Place:
    x = columns.left[one.rung] + (one.place % columns.limit + 0.5) * STEP
    y = tops[one.lane] + LANE / 2 + (one.place // columns.limit + 0.5) * STEP
    return x, y


# ---- what is drawn -----------------------------------------------------------------------------


def _heads(columns: _Columns, has_refit: bool) -> list[Markup]:
    word = "rung " if len(columns.left) <= MAX_HEADED else ""
    heads = [
        tag("text", f"{word}{rung}", x=left + columns.width[rung] / 2, y=HEAD - 8,
            text_anchor="middle", class_="note")
        for rung, left in columns.left.items()
    ]  # fmt: skip
    if has_refit:
        heads.append(tag("text", "refit", x=columns.refit + STEP / 2, y=HEAD - 8,
                         text_anchor="middle", class_="note"))  # fmt: skip
    return heads


def _edges(runs: Sequence[LineageRun], places: dict[str, Place], columns: _Columns) -> list[Markup]:
    """Lines between runs; the way to the pick is drawn last."""
    way = _way_to_pick(runs)
    order = sorted(runs, key=lambda one: one.label in way)
    found = [
        _edge(places[one.parent], places[one.label], one.is_again, one.label in way)
        for one in order
        if one.parent in places
    ]
    for one in runs:
        if one.is_refit:
            at = columns.refit + STEP / 2, places[one.label][1]
            found += [
                _edge(places[one.label], at, True, one.is_pick),
                tag("circle", cx=at[0], cy=at[1], r=RADIUS, class_="run shade-4"),
            ]
    return found


def _edge(start: Place, end: Place, is_again: bool, is_picked: bool) -> Markup:
    """A line; to the same height in a bow, past the runs between."""
    (x1, y1), (x2, y2) = start, end
    bows = y1 == y2 and x2 - x1 > 2 * STEP
    bend = max(16.0, (x2 - x1) / (4 if bows else 2))
    bow = min(BOW, 5 + (x2 - x1) / 40) if bows else 0.0
    path = (
        f"M{x1:.1f} {y1:.1f}C{x1 + bend:.1f} {y1 - bow:.1f} "
        f"{x2 - bend:.1f} {y2 - bow:.1f} {x2:.1f} {y2:.1f}"
    )
    kind = "edge" + ("" if is_again else " changed") + (" picked" if is_picked else "")
    return tag("path", d=path, class_=kind)


def _way_to_pick(runs: Sequence[LineageRun]) -> set[str]:
    parents = {one.label: one.parent for one in runs}
    at = next((one.label for one in runs if one.is_pick), "")
    way: set[str] = set()
    while at in parents:
        way.add(at)
        at = parents[at]
    return way


def _mark(one: LineageRun, x: float, y: float, has_story: bool) -> Markup:
    score = one.state if math.isnan(one.val_score) else f"validation {number(one.val_score)}"
    story = f". {one.made} {one.ended}" if has_story else ""
    said = tag("title", f"#{one.label} {one.network}, {score}{story}")
    if one.state == "diverged":
        return tag("g", said, _cross(x, y))
    return _shape(one.shade, x, y, one.is_pick, one.is_host, one.on_frontier, said)


def _cross(x: float, y: float) -> Markup:
    return tag("path", d=f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8", class_="lost")


def _shape(
    shade: int, x: float, y: float, is_pick: bool, is_host: bool, is_best: bool, *inside: Markup
) -> Markup:
    shades = "unknown" if shade < 0 else f"shade-{min(shade, SHADES - 1)}"
    marked = [name for name, holds in (("best", is_best), ("picked", is_pick), ("given", is_host))
              if holds]  # fmt: skip
    kind = " ".join(["run", shades, *marked])
    if is_pick:
        corners = " ".join(
            f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in ((0, -8), (8, 0), (0, 8), (-8, 0))
        )
        return tag("polygon", *inside, points=corners, class_=kind)
    if is_host:
        return tag("rect", *inside, x=x - 5.5, y=y - 5.5, width=11, height=11, class_=kind)
    return tag("circle", *inside, cx=x, cy=y, r=RADIUS if shade >= 0 else 4.0, class_=kind)


def _legend(runs: Sequence[LineageRun]) -> Markup:
    """Marks and their meaning, above the plot."""
    parts: list[Markup] = [tag("text", "validation score, lowest fifth", x=0.0, y=20.0)]
    at = 206.0
    parts += [_shape(shade, at + 14 * shade, 16.0, False, False, False) for shade in range(SHADES)]
    at += 14 * SHADES
    parts.append(tag("text", "highest", x=at, y=20.0))
    at += 70
    kinds = [
        (any(one.on_frontier for one in runs), "on the frontier", (False, False, True)),
        (any(one.is_pick for one in runs), "the pick", (True, False, True)),
        (any(one.is_host and not one.is_pick for one in runs), "your model", (False, True, False)),
    ]
    for holds, said, look in kinds:
        if holds:
            parts += [_shape(3, at, 16.0, *look), tag("text", said, x=at + 14, y=20.0)]
            at += 34 + 7.0 * len(said)
    if any(one.state == "diverged" for one in runs):
        parts += [_cross(at, 16.0), tag("text", "diverged", x=at + 12, y=20.0)]
    return markup(*parts)
