"""Looks at a changed run folder among sound ones with every command that shows runs."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import traceback
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from fastapi.testclient import TestClient

from esper.karn.terminal import Terminal
from esper.karn.tui.formats import notice
from esper.karn.tui.reader import RunReader
from esper.karn.tui.run_screen import PANELS
from esper.karn.tui.runs_table import _row
from esper.karn.tui.title_bar import _name, _progress
from esper.karn.views import to_plain
from esper.karn.views.kinds import find_kind
from esper.karn.web.access import access_for
from esper.karn.web.app import make_app
from esper.karn.web.places import RunsFolder
from esper.leyline.errors import EsperError
from esper.scripts import report, runs, show
from folder_mutations import mutate

BAD: Final = "bad"
_HIDDEN: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")


class Strangers:
    """A folder of sound runs, and room for one that somebody changed."""

    def __init__(self, root: Path, sound: Sequence[Path]) -> None:
        self.root, self.sound = root, tuple(sound)
        for at, run in enumerate(sound[:2]):
            shutil.copytree(run, root / f"good{at}")
        self.client = TestClient(
            make_app(RunsFolder(root), access_for("127.0.0.1", None)),
            base_url="http://127.0.0.1",
            raise_server_exceptions=True,
        )
        self.usual = self._rows()

    def complaints(self, seed: int) -> list[str]:
        """What is wrong with how the run of a seed is shown; empty: nothing."""
        shutil.copytree(self.sound[seed % len(self.sound)], self.root / BAD)
        try:
            what = mutate(self.root / BAD, seed)
            found = [f"{name}: {said}" for name, look in _LOOKS if (said := _tried(look, self))]
            return [f"{what}\n  {one}" for one in found]
        finally:
            shutil.rmtree(self.root / BAD)

    def _rows(self) -> list[str]:
        """What `esper runs` says about the sound ones."""
        said = printed(runs.main, "--runs", str(self.root), "--json")[1]
        return [json.dumps(run) for run in json.loads(said) if run["name"] != BAD]


def printed(main: Callable[[Sequence[str]], int], *argv: str) -> tuple[int, str, str]:
    """Status, output and errors of a command; it prints as to no terminal."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = main(list(argv))
    return status, out.getvalue(), errors.getvalue()


def _tried(look: Callable[[Strangers], str], place: Strangers) -> str:
    try:
        return look(place)
    except BaseException:
        return traceback.format_exc(limit=-4)


def _wrong(status: int, out: str, errors: str) -> str:
    """What is wrong with the output of a command."""
    if status not in (0, 2) or (status == 2 and errors.count("\n") != 1):
        return f"status {status}: {errors}"
    return hidden(out) or hidden(errors)


def hidden(text: str) -> str:
    """Says which characters of a text a terminal would obey."""
    found = {one for one in text if unicodedata.category(one) in _HIDDEN and one != "\n"}
    return f"control characters {sorted(map(ascii, found))}" if found else ""


def _runs(place: Strangers) -> str:
    status, out, errors = printed(runs.main, "--runs", str(place.root))
    if status or errors:
        return f"status {status}: {errors}"
    there = find_kind(place.root / BAD) is not None
    missing = [name for name in ("good0", "good1", *[BAD] * there) if name not in out]
    if missing or place._rows() != place.usual:
        return f"{missing} not in the list, or others are shown otherwise"
    return hidden(out)


def _show(place: Strangers) -> str:
    return _wrong(*printed(show.main, str(place.root / BAD))) or _wrong(
        *printed(show.main, str(place.root / BAD), "--json")
    )


def _report(place: Strangers) -> str:
    target = place.root / BAD / "page.html"
    found = _wrong(*printed(report.main, str(place.root / BAD), "--out", str(target)))
    page = target.read_text() if target.is_file() else ""
    return found or ("a script in the page" if "<script>alert" in page else "")


def _serve(place: Strangers) -> str:
    listed = place.client.get("/api/runs")
    names = [run["name"] for run in listed.json()["runs"]]
    if listed.status_code != 200 or not {"good0", "good1"} <= set(names):
        return f"the list is {listed.status_code}, {names}"
    for address in (f"/api/runs/{BAD}", f"/api/runs/{BAD}/seeds", "/api/runs/good0"):
        found = place.client.get(address)
        if found.status_code not in (200, 400, 404) or "\n" in found.text:
            return f"{address}: {found.status_code} {found.text[:200]}"
    return ""


def _tui(place: Strangers) -> str:
    """What the screens draw, without the terminal: that takes a second for each."""
    run = place.root / BAD
    if (kind := find_kind(run)) is None:
        return ""
    try:
        shot = RunReader(run).read()
    except EsperError as error:
        return hidden(str(error))
    assert shot is not None
    out = io.StringIO()
    console = Terminal(file=out, width=100)
    panels = [panel(at) for at, panel in enumerate(PANELS[kind], start=1)]
    for drawn in (
        *(panel._content(shot, 78, 20) for panel in panels),
        *_row(shot.summary),
        _name(shot, 100),
        _progress(shot, 100),
        notice(shot.summary),
    ):
        console.print(drawn)
    return hidden(out.getvalue()) or hidden(json.dumps(to_plain(shot), ensure_ascii=False))


_LOOKS: Final = (
    ("runs", _runs), ("show", _show), ("report", _report), ("serve", _serve), ("tui", _tui),
)  # fmt: skip
