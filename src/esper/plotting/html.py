"""HTML by functions: text is escaped, attributes are quoted, every element is closed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

VOID: Final = ("meta",)
"""Elements without an end tag."""


class Markup(str):
    """Text that is HTML already; any other string is escaped."""

    __slots__ = ()


def markup(*parts: str) -> Markup:
    """Join parts; those that are not `Markup` are escaped.

    >>> markup("a < b", Markup("<br>"))
    'a &lt; b<br>'
    """
    return Markup("".join(p if isinstance(p, Markup) else escape(p) for p in parts))


def tag(name: str, /, *parts: str, **attributes: str | float) -> Markup:
    """An element; `class_` is the attribute class, other underscores become hyphens.

    >>> tag("th", "R & D", scope="row")
    '<th scope="row">R &amp; D</th>'
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_attribute(value))}"'
        for key, value in attributes.items()
    )
    if name in VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{markup(*parts)}</{name}>")


def _attribute(value: str | float) -> str:
    """Coordinates with one digit after the point keep the page small."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    figures: Sequence[int] = (),
) -> Markup:
    """A table whose first column names the rows; `figures`: columns of numbers, aligned right."""

    def side(column: int) -> dict[str, str]:
        return {"class_": "figure"} if column in figures else {}

    titles = [tag("th", cell, scope="col", **side(c)) for c, cell in enumerate(head)]
    lines = []
    for row in rows:
        cells = [tag("th", row[0], scope="row", **side(0))]
        cells += [tag("td", cell, **side(c)) for c, cell in enumerate(row[1:], 1)]
        lines.append(tag("tr", *cells))
    inner = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *titles)),
        tag("tbody", *lines),
    )
    # A wide table is scrolled by keyboard, too.
    return tag("section", inner, class_="scroll", tabindex="0", aria_label=caption)


def details(summary: str, *parts: str) -> Markup:
    """Parts that are shown on demand."""
    return tag("details", tag("summary", summary), *parts)


def code(*lines: str) -> Markup:
    """Lines of code."""
    return tag("pre", tag("code", "\n".join(lines)), tabindex="0")


STYLE: Final = """
.esper-grow {
  --page: #ffffff; --text: #1b1f24; --muted: #57606a; --line: #d0d7de; --soft: #f3f5f8;
  --front: #0550ae; --host: #953800; --pick: #116329; --faint: #7d8590; --mark: #dff3e4;
  color: var(--text); background: var(--page); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
@media (prefers-color-scheme: dark) {
  .esper-grow {
    --page: #0d1117; --text: #e6edf3; --muted: #9da7b3; --line: #30363d; --soft: #161b22;
    --front: #79b8ff; --host: #ffa657; --pick: #56d364; --faint: #6e7681; --mark: #12361f;
  }
}
.esper-grow.page { margin: 0; }
.esper-grow main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
.esper-grow h1 { font-size: 1.4rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
.esper-grow h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem; }
.esper-grow .verdict { font-size: 1.25rem; margin: .5rem 0 1rem; }
.esper-grow .facts { display: flex; flex-wrap: wrap; gap: .75rem; padding: 0; margin: 1rem 0; }
.esper-grow .facts li { list-style: none; background: var(--soft); border-radius: .5rem;
  padding: .6rem .9rem; min-width: 9rem; }
.esper-grow .facts strong { display: block; font-size: 1.25rem; }
.esper-grow .muted, .esper-grow figcaption, .esper-grow caption { color: var(--muted); }
.esper-grow figure { margin: 0 0 1rem; }
.esper-grow figcaption, .esper-grow caption { font-size: .9rem; text-align: left; }
.esper-grow caption { padding: .25rem 0; }
.esper-grow svg { display: block; width: 100%; height: auto; max-width: 60rem; }
.esper-grow svg text { fill: var(--text); font-size: 13px; }
.esper-grow svg .tick, .esper-grow svg .note { fill: var(--muted); font-size: 12px; }
.esper-grow .scroll { overflow-x: auto; }
.esper-grow table { border-collapse: collapse; font-variant-numeric: tabular-nums;
  font-size: .92rem; background: var(--page); color: var(--text); }
.esper-grow th, .esper-grow td { padding: .3rem .8rem .3rem 0; text-align: left;
  border-bottom: 1px solid var(--line); font-weight: normal; vertical-align: top; }
.esper-grow thead th { font-weight: 600; white-space: nowrap; }
.esper-grow tbody th { min-width: 7rem; }
.esper-grow td:last-child:not(.figure) { min-width: 10rem; }
.esper-grow .figure { text-align: right; white-space: nowrap; }
.esper-grow pre { background: var(--soft); padding: .8rem; border-radius: .5rem;
  overflow-x: auto; font-size: .9rem; }
.esper-grow code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.esper-grow details { margin: .5rem 0; }
.esper-grow summary { cursor: pointer; color: var(--front); }
.esper-grow .axis { stroke: var(--muted); }
.esper-grow .grid { stroke: var(--line); }
.esper-grow .front { stroke: var(--front); fill: var(--front); }
.esper-grow .host { stroke: var(--host); fill: var(--host); }
.esper-grow .pick { stroke: var(--pick); fill: var(--pick); }
.esper-grow .others { stroke: var(--faint); fill: none; }
.esper-grow .static { stroke: var(--pick); fill: var(--page); }
.esper-grow .name { paint-order: stroke; stroke: var(--page); stroke-width: 3; }
.esper-grow .hollow { fill: var(--page); }
.esper-grow .under-way { stroke: var(--faint); fill: none; stroke-dasharray: 2 2; }
.esper-grow .done { stroke: var(--muted); fill: var(--muted); }
.esper-grow .path { fill: none; }
.esper-grow .empty { stroke: var(--muted); fill: var(--page); }
.esper-grow .seed { stroke: var(--pick); fill: var(--mark); }
@media print { .esper-grow details { display: block; } }
"""
