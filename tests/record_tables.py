"""Generates the tables of docs/records.md from the classes that own the columns.

python tests/record_tables.py       writes them anew
"""

from __future__ import annotations

import re
from pathlib import Path

from esper.karn.query.catalogue import all_views
from esper.karn.query.columns import View

PAGE = Path(__file__).parents[1] / "docs" / "records.md"
BLOCK = re.compile(r"<!-- views -->\n.*?<!-- end -->", re.DOTALL)


def table_of(view: View) -> str:
    """A view as Markdown."""
    rows = [f"### {view.name}", "", view.doc, "", "| column | type | what it is |", "|---|---|---|"]
    for one in view.columns:
        cells = (f"`{one.name}`", one.type, one.doc)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def written(page: str) -> str:
    """The page with its tables as they should be."""
    tables = "\n\n".join(map(table_of, all_views()))
    return BLOCK.sub(lambda _: f"<!-- views -->\n{tables}\n<!-- end -->", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
