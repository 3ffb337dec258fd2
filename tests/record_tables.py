"""Generates the views of docs/records.md from the classes that own the columns.

What every event has, and the ends of intervals, is said once, above them; types are what
`esper query RUN` prints.

python tests/record_tables.py       writes them anew
"""

from __future__ import annotations

import re
from pathlib import Path

from esper.karn.query.catalogue import all_views
from esper.karn.query.columns import View

PAGE = Path(__file__).parents[1] / "docs" / "records.md"
BLOCK = re.compile(r"<!-- views -->\n.*?<!-- end -->", re.DOTALL)
EVERY_EVENT = ("event", "time", "round", "step")


def own_columns(view: View) -> list[tuple[str, str]]:
    """Columns with their descriptions, without those that the page describes for all views."""
    columns = [(one.name, one.doc) for one in view.columns]
    if tuple(name for name, _ in columns[: len(EVERY_EVENT)]) == EVERY_EVENT:
        columns = columns[len(EVERY_EVENT) :]
    names = {name for name, _ in columns}
    return [(n, d) for n, d in columns if re.sub("_(low|high)$", "", n) not in names - {n}]


def list_of(view: View) -> str:
    """A view as Markdown; columns whose names say what they are stand in its last line."""
    columns = own_columns(view)
    lines = [f"- `{name}`: {doc}" for name, doc in columns if doc]
    plain = ", ".join(f"`{name}`" for name, doc in columns if not doc)
    return "\n".join(
        [f"### {view.name}", "", view.doc, "", *lines, *([f"- {plain}"] if plain else [])]
    )


def written(page: str) -> str:
    """The page with its views as they should be."""
    views = "\n\n".join(map(list_of, all_views()))
    return BLOCK.sub(lambda _: f"<!-- views -->\n{views}\n<!-- end -->", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
