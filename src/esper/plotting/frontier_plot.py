"""Score against size: networks of a search, topologies of an audit, policies of a comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from esper.leyline.errors import shorten
from esper.leyline.statistics import Estimate
from esper.plotting.html import Markup, markup, tag
from esper.plotting.line_plot import (
    LEFT,
    RIGHT,
    canvas,
    nothing,
    score_scale,
    whisker,
    within,
)
from esper.plotting.pareto import frontier
from esper.plotting.svg_axes import Scale, x_axis, y_axis

HEIGHT, TOP, BOTTOM = 400.0, 62.0, 350.0
_LETTER: Final = 6.4
"""Width of a letter of a label, about."""
_LINE: Final = 13.0
_PLACES: Final = ((9.0, -7.0), (-9.0, -7.0), (9.0, 15.0), (-9.0, 15.0), (9.0, 4.0), (-9.0, 4.0))
"""Where a label may be, from its dot: to the right or, if negative, to the left."""


@dataclass(frozen=True, slots=True)
class Dot:
    """A network of the plot."""

    label: str
    params: float
    score: Estimate
    kind: str
    """`pick`, `host`, `front`, `static`, `others` or `under-way` (no line joins the last two): the
    mark it gets."""
    is_hollow: bool = False
    """Drawn without fill."""
    on_line: bool | None = None
    """Whether the line joins it; None: if no smaller one beats it."""


WORDS: Final = {
    "pick": "the pick", "host": "host", "front": "grown, or chosen",
    "static": "planted from the start",
}  # fmt: skip


def frontier_plot(
    dots: Sequence[Dot], score_title: str, named: bool = False, words: Mapping[str, str] = WORDS
) -> Markup:
    """Score against parameters with intervals; a line joins those that no smaller one beats.

    `words`: what the kinds of dots are called.
    """
    known = [dot for dot in dots if math.isfinite(dot.score.value) and dot.params > 0]
    if not known:
        return nothing("no network has a score yet")
    x = Scale.over([dot.params for dot in known], LEFT, RIGHT, log=True)
    y = score_scale([dot.score for dot in known], BOTTOM, TOP)
    assert y is not None  # scores are known
    line = " ".join(f"{x(dot.params):.1f},{y(dot.score.value):.1f}" for dot in _joined(known))
    kinds = [kind for kind in words if any(dot.kind == kind for dot in known)]
    return canvas(
        f"{score_title} against parameters of {len(known)} networks; the table has the values",
        HEIGHT,
        _legend([(next(dot for dot in known if dot.kind == kind), words[kind]) for kind in kinds]),
        x_axis(x, x.ticks(), TOP, BOTTOM, "parameters (log)"),
        y_axis(y, LEFT, RIGHT, score_title),
        tag("polyline", points=line, class_="front path", stroke_width=1.4),
        *(_dot(dot, x, y) for dot in known),
        *(_names(known, x, y) if named else ()),
    )


def _joined(dots: Sequence[Dot]) -> list[Dot]:
    """Those on the line, smallest first."""
    if any(dot.on_line is not None for dot in dots):
        return sorted((dot for dot in dots if dot.on_line), key=lambda dot: dot.params)
    some = [dot for dot in dots if dot.kind != "others"]
    best = frontier([dot.params for dot in some], [dot.score.value for dot in some])
    return [some[i] for i in best]


def _mark(dot: Dot, x: float, y: float, *inside: str) -> Markup:
    """Kinds differ in shape, not in colour alone."""
    kind = f"{dot.kind} hollow" if dot.is_hollow else dot.kind
    if dot.kind == "pick":
        corners = f"{x:.1f},{y - 8:.1f} {x + 8:.1f},{y:.1f} {x:.1f},{y + 8:.1f} {x - 8:.1f},{y:.1f}"
        return tag("polygon", *inside, points=corners, class_=kind)
    if dot.kind == "host":
        return tag("rect", *inside, x=x - 5, y=y - 5, width=10, height=10, class_=kind)
    return tag("circle", *inside, cx=x, cy=y, r=4.5 if dot.kind == "front" else 4.0, class_=kind)


def _dot(dot: Dot, x: Scale, y: Scale) -> Markup:
    at, low, high = x(dot.params), dot.score.low, dot.score.high
    is_known = math.isfinite(low + high)
    bar = [whisker(low, high, y, at, f"{dot.kind} bar")] if is_known else []
    words = f"{dot.label}: {dot.params:,.0f} parameters, {dot.score.value:.4f}"
    return markup(*bar, _mark(dot, at, y(dot.score.value), tag("title", words)))


_Box = tuple[float, float, float, float]


def _names(dots: Sequence[Dot], x: Scale, y: Scale) -> list[Markup]:
    """Labels where they cover nothing; one that finds no place is left to the table."""
    spots = [(x(dot.params), y(dot.score.value)) for dot in dots]
    taken: list[_Box] = [(at - 5, height - 5, at + 5, height + 5) for at, height in spots]
    bars: list[_Box] = [
        (x(dot.params) - 2, within(dot.score.high, y), x(dot.params) + 2, within(dot.score.low, y))
        for dot in dots
        if math.isfinite(dot.score.low + dot.score.high)
    ]
    found = []
    for dot, (at, height) in zip(dots, spots, strict=True):
        word = shorten(dot.label, 26)
        place = _place(word, at, height, [*taken, *bars]) or _place(word, at, height, taken)
        if place is not None:
            right, down = place
            taken.append(_label_box(word, at + right, height + down, right < 0))
            found.append(tag("text", word, x=at + right, y=height + down, class_="note name",
                             text_anchor="end" if right < 0 else "start"))  # fmt: skip
    return found


def _place(
    word: str, at: float, height: float, taken: Sequence[_Box]
) -> tuple[float, float] | None:
    """The first place of a label beside its dot where it covers nothing; None: there is none."""
    for right, down in _PLACES:
        box = _label_box(word, at + right, height + down, right < 0)
        is_inside = LEFT <= box[0] < box[2] <= RIGHT
        if is_inside and not any(_overlap(box, other) for other in taken):
            return right, down
    return None


def _label_box(word: str, at: float, base: float, leftwards: bool) -> _Box:
    width = _LETTER * len(word)
    return (at - width if leftwards else at, base - _LINE + 3, at if leftwards else at + width,
            base + 3)  # fmt: skip


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _legend(kinds: Sequence[tuple[Dot, str]]) -> Markup:
    """Marks and their meaning, above the plot."""
    parts, at = [], LEFT
    for dot, said in kinds:
        parts += [_mark(dot, at + 8, 18), tag("text", said, x=at + 22, y=22.0)]
        at += 48 + 7.0 * len(said)
    return markup(*parts)
