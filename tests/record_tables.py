"""Generates the views of docs/records.md from the classes that own the columns.

Columns of records are described; those of events are named, and `esper query RUN` describes them.
What every event has, and the ends of intervals, is said once, above them.

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


def is_event(view: View) -> bool:
    return tuple(one.name for one in view.columns[: len(EVERY_EVENT)]) == EVERY_EVENT


def own_columns(view: View) -> list[tuple[str, str]]:
    """Columns with their descriptions, without those that the page describes for all views."""
    columns = [(one.name, one.doc) for one in view.columns]
    columns = columns[len(EVERY_EVENT) :] if is_event(view) else columns
    names = {name for name, _ in columns}
    return [(n, d) for n, d in columns if re.sub("_(low|high)$", "", n) not in names - {n}]


def list_of(view: View) -> str:
    """A view of records as Markdown; columns that say it themselves are in its last line."""
    columns = own_columns(view)
    lines = [f"- `{name}`: {doc}" for name, doc in columns if doc]
    plain = ", ".join(f"`{name}`" for name, doc in columns if not doc)
    lines += [f"- {plain}"] if plain else []
    return "\n".join([f"### {view.name}", "", view.doc, "", *lines])


def names_of(view: View) -> str:
    """A view of events as Markdown: what it is, and the names of its columns."""
    columns = ", ".join(f"`{name}`" for name, _ in own_columns(view))
    return f"- **`{view.name}`**: {view.doc} {columns}"


def written(page: str) -> str:
    """The page with its views as they should be."""
    views = all_views()
    records = "\n\n".join(list_of(view) for view in views if not is_event(view))
    events = "\n".join(names_of(view) for view in views if is_event(view))
    return BLOCK.sub(
        lambda _: f"<!-- views -->\n{records}\n\n### Events\n\n{events}\n<!-- end -->", page
    )


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
