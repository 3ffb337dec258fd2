"""Damages one file of a run after the other, and looks: the page, the terminal, the report."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from esper.karn.report.page import page
from esper.karn.tui.panel import Panel
from esper.karn.tui.reader import RunReader
from esper.karn.tui.run_screen import PANELS
from esper.karn.views.kinds import find_kind
from esper.karn.web.feed import RunFeed
from esper.leyline.errors import EsperError

SHOWN: Final = (".json", ".jsonl", ".parquet")
"""Endings of the files that are read for people; weights are not."""
NOT_SHOWN: Final = ("checkpoints", "networks", "members")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def other_types(path: Path) -> None:
    path.write_text('[null, {"seconds": [], "rows": 3}, "NaN", NaN]\n')


def not_text(path: Path) -> None:
    path.write_bytes(b"\x00\xff\xfe" * 50 + b"\n")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: Final = (cut, other_types, not_text, folder, Path.unlink)


def files(run: Path) -> list[Path]:
    """What is read of a run for people."""
    found = (path for path in sorted(run.rglob("*")) if path.suffix in SHOWN and path.is_file())
    return [path for path in found if not {*path.relative_to(run).parts} & {*NOT_SHOWN}]


def damaged(run: Path, copy: Path) -> Iterator[tuple[str, Path]]:
    """(what was done, copy of the run) for one damage after the other."""
    for path in files(run):
        for damage in (cut, folder) if path.suffix == ".parquet" else DAMAGE:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(run, copy)
            damage(copy / path.relative_to(run))
            yield f"{path.relative_to(run)} {damage.__name__}", copy


def parts(message: dict[str, Any]) -> set[str]:
    """Parts of a run that are shown."""
    return {name for name, value in message.items() if value not in ([], {}, None, 0)} - {
        "problems", "run"}  # fmt: skip


def web(run: Path) -> tuple[set[str], str]:
    message = RunFeed(run).first()
    return parts(message), f"{message['problems']} {message['run']['problem']}"


def terminal(run: Path) -> tuple[set[str], str]:
    shot = RunReader(run).read()
    assert shot is not None
    kind = find_kind(run)
    assert kind is not None
    panels: list[Panel] = [make(at) for at, make in enumerate(PANELS[kind], start=1)]
    for panel in panels:
        panel._content(shot, 78, 20)
    names = ("rounds", "ppo", "speeds", "seeds", "frontier", "curves", "contenders", "members",
             "log")  # fmt: skip
    return {name for name in names if getattr(shot, name)}, f"{shot.problem} {shot.summary.problem}"


def report(run: Path) -> tuple[set[str], str]:
    text = page(run)
    titles = text.split("<h2>")[1:]
    said = "; ".join(re.findall('class="problem">([^<]*)', text))
    return {title.partition("</h2>")[0] for title in titles if "<table" in title}, said


Look = Callable[[Path], tuple[set[str], str]]
"""Parts of a run that a medium shows, and what it says cannot be read."""
MEDIA: Final[tuple[Look, ...]] = (web, terminal, report)


ESSENTIAL: Final = ("run.json", "grow.json", "audit.json", "settings.json", "config.json")
"""Without one of these a folder is no run of its kind."""


def unnamed(run: Path, look: Look, copy: Path) -> list[str]:
    """Damage that hides a part of a run without saying so, or hides all of it."""
    usual, _ = look(run)
    wrong = []
    for what, place in damaged(run, copy):
        name = Path(what.split()[0]).name
        try:
            shown, said = look(place)
        except EsperError as error:
            shown, said = set(), str(error)
        missing = usual - shown
        if missing and not what.endswith("unlink") and name not in said:
            wrong.append(f"{what}: {missing} is missing and nobody says why: {said[:300]}")
        if not shown and name not in ESSENTIAL:
            wrong.append(f"{what}: nothing is shown, {said[:300]}")
    return wrong
