"""Generates the tables of docs/commands.md from `--help`.

python tests/command_tables.py       writes them anew
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from pathlib import Path
from unittest.mock import patch

from esper.scripts.main import main

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
BLOCK = re.compile(r"<!-- (esper [a-z -]+) --help -->\n.*?<!-- end -->", re.DOTALL)


def help_of(words: list[str]) -> str:
    """What a command prints."""
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # boxes are drawn as on a terminal
    with (
        contextlib.redirect_stdout(said),
        contextlib.suppress(SystemExit),
        patch.dict(os.environ, {"COLUMNS": "100", "NO_COLOR": "1"}),
        patch.object(sys, "argv", ["esper", *words, "--help"]),
    ):
        main()
    said.seek(0)
    return said.read()


def settings_in(text: str) -> list[tuple[str, str, str]]:
    """(flag with its form, sentence, default) of every flag in a help text."""
    entries: list[list[str]] = []
    for line in text.splitlines():
        inside = re.fullmatch(r"│ (.*) │", line)
        if inside is None:
            continue
        words = inside[1].rstrip()
        if words.startswith("-"):
            head, _, says = words.partition("  ")
            entries.append([head, says.strip()])
        elif entries and words.startswith("  "):
            entries[-1][1] += f" {words.strip()}"
        elif entries and words and not words.startswith("─") and not entries[-1][1]:
            entries[-1][0] += words  # a form that is longer than a line
    found = []
    for head, says in entries:
        default = re.search(r"\(default: (.*)\)$", says)
        sentence = says[: default.start()].strip() if default else says.strip()
        found.append((head, sentence, default[1] if default else ""))
    return [entry for entry in found if not entry[0].startswith("-h")]


def table_of(command: str) -> str:
    """The table of a command, as Markdown."""
    rows = ["| setting | what it does | default |", "|---|---|---|"]
    for head, says, default in settings_in(help_of(command.split()[1:])):
        cells = (f"`{head}`", says, f"`{default}`" if default else "")
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def written(page: str) -> str:
    """The page with its tables as they should be."""
    return BLOCK.sub(
        lambda found: f"<!-- {found[1]} --help -->\n{table_of(found[1])}\n<!-- end -->", page
    )


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
