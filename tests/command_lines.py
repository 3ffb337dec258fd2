"""Commands on the pages of docs/, given to their parsers alone: nothing is trained."""

from __future__ import annotations

import argparse
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tyro

from esper.scripts import main as cli
from page_support import DOCS, ROOT, shell_lines

RUN_ELSEWHERE = ("commands.md", "lab.md")
"""Pages whose commands tests run; those of others are only read."""
PAGES = [p for p in sorted(DOCS.rglob("*.md")) if p.name not in RUN_ELSEWHERE]
PAGES += [ROOT / "CONTRIBUTING.md", ROOT / "lab" / "README.md"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`(esper \w+ [^-`][^`]*\s--[^`]+|python (?:lab/)?scripts/\w+\.py[^`]*)`")
STARTS = re.compile(r"(?:[A-Z_]+=\S+ )?(?:esper|python|torchrun) ")
SCRIPT = re.compile(r"(?:lab/)?scripts/\w+\.py")


class Understood(BaseException):
    """A parser took its arguments: what follows is left out."""


def commands(page: Path) -> list[list[str]]:
    """Lines for the shell, and spans of code that show flags; runs of others stay out."""
    spans = SPAN.findall(FENCE.sub("", page.read_text()))
    found = [_plain(words) for words in [*shell_lines(page), *map(shlex.split, spans)]]
    return [w for w in found if w and not {"--resume", "--config"} & set(w)]


def _plain(words: list[str]) -> list[str]:
    """A command as `esper NAME ...` or `python PATH ...`; empty if it is neither."""
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    if words[:1] in (["torchrun"], ["python"]) and "-m" in words:
        module, *words = words[words.index("-m") + 1 :]
        words = ["esper", module.removeprefix("esper.scripts."), *words]
    ours = words[:1] == ["esper"] or (words[:1] == ["python"] and SCRIPT.match(words[1]))
    return words if ours else []


def stray_commands(page: Path) -> list[str]:
    """Commands in blocks that are not marked as ones for the shell."""
    blocks = [text for kind, text in FENCE.findall(page.read_text()) if kind != "sh"]
    lines = [line for text in blocks for line in text.splitlines()]
    return [
        line for line in lines if re.match(r"(?:[A-Z_]+=\S+ )?(?:esper|python|torchrun) ", line)
    ]


def understand(
    argv: Sequence[str], monkeypatch: pytest.MonkeyPatch, check: Callable[[Any], object]
) -> None:
    """Let a command read its arguments, and check the settings; raises where it refuses.

    Settings that name a reader's Python file or a tracker are only read: neither need be there.
    """
    theirs = any(".py" in word and not SCRIPT.search(word) for word in argv[2:])
    theirs |= "--track" in argv
    read, parse = tyro.cli, argparse.ArgumentParser.parse_args

    def parsed(*args: Any, **options: Any) -> None:
        found = read(*args, **options)
        if not theirs:
            getattr(found, "check", lambda: None)()
            check(found)
        raise Understood

    def parsed_here(*args: Any, **options: Any) -> None:
        parse(*args, **options)
        raise Understood

    with monkeypatch.context() as patch:
        patch.setattr(tyro, "cli", parsed)
        patch.setattr(argparse.ArgumentParser, "parse_args", parsed_here)
        patch.setattr(sys, "argv", list(argv if argv[0] == "esper" else argv[1:]))
        with pytest.raises(Understood):
            assert _start(argv) is None, shlex.join(argv)


def _start(argv: Sequence[str]) -> int | None:
    if argv[0] == "esper":
        return cli.main()
    script = ROOT / argv[1]
    if not re.search(r"run_command|tyro|ArgumentParser", script.read_text()):
        raise Understood  # it has no parser
    runpy.run_path(str(script), run_name="__main__")
    return 2


def enter_checkout(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change into a folder with what commands of pages name: files of the checkout, and runs."""
    for name in ("docs", "lab", "scripts"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("RUN", "runs/RUN", "runs/OTHER_RUN"):
        (folder / name).mkdir(parents=True)
    monkeypatch.chdir(folder)
