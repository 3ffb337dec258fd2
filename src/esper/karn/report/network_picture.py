"""One network before and after: its slots in order, and the seeds that they hold in the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from esper.leyline.errors import shorten
from esper.plotting.html import Markup, markup, tag
from esper.plotting.line_plot import canvas

BEFORE, AFTER, STEP = 400.0, 600.0, 44.0
MAX_LABEL_CHARS: Final = 36


def before_and_after(slots: Sequence[str], seeds: Sequence[str], before: str, after: str) -> Markup:
    """`seeds`: blueprint of every slot, "" for an empty one; `before`, `after`: titles."""
    bottom = 70 + STEP * (len(slots) + 1)
    parts = [
        tag("text", before, x=BEFORE, y=20.0, text_anchor="middle"),
        tag("text", after, x=AFTER, y=20.0, text_anchor="middle"),
    ]
    for x in (BEFORE, AFTER):
        parts += [
            tag("line", x1=x, x2=x, y1=62.0, y2=bottom - 14, class_="axis"),
            tag("text", "input", x=x, y=54.0, text_anchor="middle", class_="note"),
            tag("text", "output", x=x, y=bottom, text_anchor="middle", class_="note"),
        ]
    for row, (slot, seed) in enumerate(zip(slots, seeds, strict=True)):
        y = 56 + STEP * (row + 1)
        parts += [
            tag("text", shorten(slot, MAX_LABEL_CHARS), x=300.0, y=y + 4, text_anchor="end"),
            tag("circle", cx=BEFORE, cy=y, r=6.0, class_="empty"),
            _seed(seed, y),
        ]
    grown = sum(map(bool, seeds))
    return canvas(
        f"{len(slots)} slots, {grown} of them with a seed in the end", bottom + 16, *parts
    )


def _seed(name: str, y: float) -> Markup:
    if not name:
        return tag("circle", cx=AFTER, cy=y, r=6.0, class_="empty")
    width = 24 + 7.5 * len(name)
    return markup(
        tag("rect", x=AFTER - width / 2, y=y - 14, width=width, height=28, rx=6, class_="seed"),
        tag("text", name, x=AFTER, y=y + 5, text_anchor="middle"),
    )
