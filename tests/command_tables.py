"""Generates the tables of docs/commands.md and docs/lab.md from `--help`.

python tests/command_tables.py       writes them anew
"""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from unittest.mock import patch

from esper.scripts.cli import help as command_help
from esper.scripts.main import main

DOCS = Path(__file__).parents[1] / "docs"
PAGES = (DOCS / "commands.md", DOCS / "lab.md")
BLOCK = re.compile(r"<!-- (esper [a-z -]+) --help -->\n.*?<!-- end -->", re.DOTALL)


def help_of(command: str) -> command_help.Help:
    """What a command says about itself."""
    found: list[command_help.Help] = []
    with (
        contextlib.suppress(SystemExit),
        patch.object(command_help, "render", lambda shown, _: found.append(shown) or ""),
        patch.object(sys, "argv", [*command.split(), "--help"]),
        contextlib.redirect_stdout(None),
    ):
        main()
    return found[0]


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table_of(command: str) -> str:
    """The table of a command, as Markdown."""
    rows = ["| setting | what it does | default |", "|---|---|---|"]
    by_topic = help_of(command).by_topic()
    for topic, settings in by_topic.items():
        rows += [row(f"**{topic}**", "", "")] if len(by_topic) > 1 else []
        for setting in settings:
            default = f"`{setting.default}`" if setting.default else ""
            rows.append(row(f"`{setting.form}`", setting.says, default))
    return "\n".join(rows)


def written(page: str) -> str:
    """The page with its tables as they should be."""
    return BLOCK.sub(
        lambda found: f"<!-- {found[1]} --help -->\n{table_of(found[1])}\n<!-- end -->", page
    )


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page.read_text()))
