"""Draws the duel of docs/results.md, and writes its tables into the page.

python scripts/duel_picture.py                # from docs/data/duel.jsonl
python scripts/duel_picture.py OUT/*.jsonl    # replace that file by lines of scripts/duel.py first
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from duel import KEY, lines, pairs
from esper.plotting.html import Markup, markup, tag
from esper.plotting.line_plot import canvas, within
from esper.plotting.svg_axes import Scale, x_axis, y_axis
from frontier_svg import svg_file

DOCS: Final = Path(__file__).parents[1] / "docs"
DATA: Final = DOCS / "data" / "duel.jsonl"
PAGE: Final = DOCS / "results.md"
MACHINES: Final = {"cuda": "a quarter of an H200, 60 s", "cpu": "two x86 cores, 120 s"}
TITLES: Final = {
    "cifar": "CIFAR-10", "fashion": "Fashion-MNIST", "shakespeare": "Shakespeare (loss)",
    "table": "table", "digits": "digits", "mnist1d": "MNIST-1D",
}  # fmt: skip
LINES: Final = {"optuna": ("host", "Optuna over a plain loop"), "grow": ("front", "esper.grow")}
"""Colour and name of a contender; the last is drawn on top."""
THIN: Final[dict[str, str | float]] = {"stroke_width": 1.0, "opacity": "0.4"}
THICK: Final[dict[str, str | float]] = {"stroke_width": 2.6}
COLUMNS, PANEL, LEFT, GAP = 3, 190.0, 52.0, 62.0
TOP, TALL, APART, HEIGHT = 74.0, 150.0, 214.0, 480.0
END: Final = "<!-- end -->"
LOWEST: Final = 0.12
"""The scale of a panel begins where this share of the scores so far, over all times, is below."""


def compact(row: dict[str, Any]) -> dict[str, Any]:
    """What the picture and the tables need of a line of the duel."""
    kept = {key: row[key] for key in (*KEY, "took", "runs", "params")}
    steps = [{"at": one["at"], "test": round(one["test"], 5)} for one in row["incumbents"]]
    return kept | {"test": round(row["test"], 5), "volume": round(row["volume"], 5),
                   "incumbents": steps}  # fmt: skip


def read(path: Path = DATA) -> list[dict[str, Any]]:
    """The lines of a file."""
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def score_at(row: dict[str, Any], seconds: float) -> float:
    """Test score of the best so far, which holds until the next one; before the first -inf."""
    found = [one["test"] for one in row["incumbents"] if one["at"] <= seconds]
    return float(found[-1]) if found else -np.inf


def steps(times: Sequence[float], scores: Sequence[float]) -> list[tuple[float, float]]:
    """Corners of a line that holds every score until the next one, from the first to the end."""
    corners: list[tuple[float, float]] = []
    for at, score in zip(times, scores, strict=True):
        if np.isfinite(score) and (not corners or score != corners[-1][1]):
            corners += [(at, corners[-1][1])] if corners else []
            corners.append((at, score))
    return [*corners, (times[-1], corners[-1][1])] if corners else []


def _line(corners: list[tuple[float, float]], x: Scale, y: Scale, **style: str | float) -> Markup:
    places = [f"{x(at):.1f},{within(abs(score), y):.1f}" for at, score in corners]
    return tag("polyline", points=" ".join(places), **style)


def note(text: str, right: float, at: float) -> Markup:
    """Small text that ends at a place."""
    return tag("text", text, x=right, y=at, text_anchor="end", class_="note")


def panel(rows: Sequence[dict[str, Any]], title: str, left: float, top: float) -> Markup:
    """Score against seconds on one problem: seeds thin, their median thick."""
    end = max(row["took"] for row in rows)
    times = sorted({one["at"] for row in rows for one in row["incumbents"]} | {end})
    scores = np.array([[score_at(row, at) for at in times] for row in rows])
    known = scores[np.isfinite(scores)]
    # A loss is a negative score: its axis is turned round, so that up is better everywhere.
    shown = np.abs([np.quantile(known, LOWEST), known.max()])
    ends = (top, top + TALL) if known.max() < 0 else (top + TALL, top)
    x, y = Scale(0.0, end, left, left + PANEL), Scale.over(list(shown), *ends)
    parts = [
        x_axis(x, [0, *x.ticks()[1:]], top, top + TALL, ""),
        y_axis(y, left, left + PANEL, ""),
        tag("text", title, x=left, y=top - 10),
        note(f"n = {len(rows) // 2}", left + PANEL, top - 10),
    ]
    for name, (kind, _) in LINES.items():
        of = scores[[row["contender"] == name for row in rows]]
        with np.errstate(invalid="ignore"):
            middle = np.median(of, axis=0)
        for found, style in [*((one, THIN) for one in of), (middle, THICK)]:
            parts.append(_line(steps(times, found), x, y, class_=f"{kind} path", **style))
    return markup(*parts)


def picture(rows: Sequence[dict[str, Any]], device: str) -> str:
    """The panels of all problems on a machine, as the text of an SVG file."""
    found = pairs([row for row in rows if row["device"] == device], "optuna").values()
    drawn = [row for both in found for pair in both for row in pair]
    head = f"Test accuracy of the best network so far, against seconds ({MACHINES[device]})"
    parts = [tag("text", head, x=12, y=20, style="font-weight: bold")]
    for number, (kind, name) in enumerate(reversed(LINES.values())):
        at = 12.0 + 130 * number
        parts += [
            tag("line", x1=at, x2=at + 26, y1=40, y2=40, class_=kind, stroke_width=2.6),
            tag("text", name, x=at + 32, y=44),
        ]
    parts.append(note("thick: median, thin: each seed; loss in nats, up is better", 748.0, 44.0))
    for number, (name, title) in enumerate(TITLES.items()):
        left = LEFT + (PANEL + GAP) * (number % COLUMNS)
        top = TOP + 8 + APART * (number // COLUMNS)
        parts.append(panel([row for row in drawn if row["problem"] == name], title, left, top))
    return svg_file(str(canvas(head, HEIGHT, *parts)), HEIGHT)


def tables(rows: Sequence[dict[str, Any]], device: str) -> str:
    """The tables of a machine, as Markdown; its heading names seconds and device."""
    found = "\n".join(lines([row for row in rows if row["device"] == device])).strip()
    return re.sub(rf", \S+ s, {device} \|", " |", found)


def with_tables(page: str, rows: Sequence[dict[str, Any]]) -> str:
    """A page with the tables between its marks replaced."""
    for device in MACHINES:
        before, rest = page.split(mark := f"<!-- duel {device} -->\n", 1)
        page = f"{before}{mark}\n{tables(rows, device)}\n\n{END}{rest.split(END, 1)[1]}"
    return page


def main(argv: Sequence[str]) -> int:
    if argv:
        given = [row for name in argv for row in read(Path(name))]
        given.sort(key=lambda row: [str(row[key]) for key in KEY])
        text = "".join(json.dumps(compact(row), separators=(",", ":")) + "\n" for row in given)
        DATA.write_text(text)
    rows = read()
    for device in MACHINES:
        (DOCS / "img" / f"duel_{device}.svg").write_text(picture(rows, device))
    PAGE.write_text(with_tables(PAGE.read_text(), rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
