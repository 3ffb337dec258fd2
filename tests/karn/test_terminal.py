"""Text of files is shown by terminals and never obeyed."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

import esper
from esper.karn.terminal import Terminal
from esper.leyline.text import visible

SOURCE = Path(esper.__file__).parent


OBEYED = "\x00\x07\x1b\x7f\x85\x9b\u200e\u202e\u2028\u2066\ud800\n\r\t"


@pytest.mark.parametrize("name", OBEYED, ids=ascii)
def test_no_character_that_a_terminal_obeys_is_left(name):
    assert visible(f"a{name}b").isprintable()


@pytest.mark.parametrize("text", ["", "día", "模型", "a b", "🙂", "±½"])
def test_text_that_people_write_stays(text):
    assert visible(text) == text


def test_a_console_styles_text_and_obeys_none_of_it():
    out = io.StringIO()
    console = Terminal(file=out, force_terminal=True, color_system="standard", legacy_windows=False)
    table = Table("name", "[/red]")
    table.add_row("[bold]x", Text("evil\x1b[2J\x9b", style="red"))
    console.print(table)
    console.print("[/red] and \x1b]0;title\x07", highlight=False)
    found = out.getvalue()
    assert "[bold]x" in found
    assert "evil\\x1" in found
    assert "[/red] and \\x1b]0;title" in found
    codes = re.findall("\x1b(.)", found)
    assert codes, "styles are there"
    assert set(re.findall("\x1b[^m]*m", found)) <= {"\x1b[1m", "\x1b[0m", "\x1b[31m"}
    assert len(codes) == len(re.findall("\x1b[^m]*m", found))


def test_every_console_is_one_of_these():
    made = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if re.search(r"(?<!\w)Console\((?!\):)", path.read_text())
    ]
    assert made == []


@pytest.mark.parametrize("name", ["show", "runs", "report", "export"])
def test_commands_that_print_what_files_hold_use_say(name):
    assert not re.search(r"(?<![.\w])print\(", (SOURCE / "scripts" / f"{name}.py").read_text())
