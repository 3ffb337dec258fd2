"""Run folders of a stranger: a file of one is changed, and every command that shows runs looks.

A seed picks the kind of run, the file and the change (`folder_mutations.py`). No command ends with
a traceback, prints a character that a terminal obeys, or hides the other runs.

    ESPER_FUZZ_SEEDS=17 python -m pytest -m slow tests/karn/views/test_strangers.py
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from esper.karn.tui.app import EsperTUI
from esper.karn.tui.runs_table import _row
from esper.karn.views import RunState, list_runs, run_summary
from esper.leyline.text import visible
from esper.scripts import report, runs, show
from esper.storage.sealed_json import seal
from folder_support import BAD, Strangers, hidden, printed
from fuzz_support import require_none, seeds
from tui_support import screen_text

FOLDER_FUZZ = "tests/karn/views/test_strangers.py"
ESCAPES = "2026[/red]<b>\x1b[31m\x9b2J\u202e\x07"


def test_a_few_changed_folders_never_give_a_traceback(tmp_path, policy, grown):
    strangers = Strangers(tmp_path, (policy, grown))
    broken = [said for seed in range(3) for said in strangers.complaints(seed)]
    require_none(broken, FOLDER_FUZZ, "1000")


@pytest.mark.slow
def test_1000_changed_folders_never_give_a_traceback(tmp_path, ppo, policy, grown, compared):
    strangers = Strangers(tmp_path, (ppo, policy, grown, compared))
    broken = [said for seed in seeds(0, 1000) for said in strangers.complaints(seed)]
    require_none(broken, FOLDER_FUZZ, "1000")


def changed(run: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a sealed file of a run."""
    document = json.loads((run / name).read_text())
    change(document)
    (run / name).write_text(json.dumps(seal(document)))


@pytest.fixture
def two(tmp_path, grown, policy) -> Path:
    """A folder with a grow run and a training run."""
    shutil.copytree(grown, tmp_path / "grown")
    shutil.copytree(policy, tmp_path / "policy")
    return tmp_path


def states(root: Path) -> dict[str, RunState]:
    return {run.name: run.state for run in list_runs(root)}


def test_a_number_without_end_makes_one_run_broken(two):
    changed(two / "grown", "result.json", lambda it: it.update(seconds=10**400))
    assert states(two) == {"grown": RunState.BROKEN, "policy": RunState.FINISHED}
    status, out, errors = printed(runs.main, "--runs", str(two))
    assert (status, errors) == (0, "")
    (line,) = [line for line in out.splitlines() if line.startswith("grown:")]
    assert "result.json is damaged: <int, about 400 digits> is too large a number" in line
    status, _, errors = printed(show.main, str(two / "grown"))
    assert (status, errors.count("\n")) == (2, 1)


def test_a_figure_of_300_digits_leaves_room_for_the_names_of_runs(two):
    (two / "grown").rename(two / "grown-one")
    changed(two / "grown-one", "result.json", lambda it: it.update(seconds=1e308))
    out = printed(runs.main, "--runs", str(two))[1]
    assert "grown-one" in out
    assert max(map(len, out.splitlines())) <= runs.WIDTH


@pytest.mark.parametrize("name", ["grown", "policy"])
def test_text_of_a_run_is_neither_markup_nor_a_command_to_the_terminal(two, name):
    file = {"grown": "grow.json", "policy": "run.json"}[name]
    changed(two / name, file, lambda it: it.update(created=ESCAPES, task=ESCAPES, model=ESCAPES)
            if name == "grown" else it.update(created=ESCAPES, task=ESCAPES))  # fmt: skip
    for argv in ((runs.main, "--runs", str(two)), (show.main, str(two / name))):
        _, out, errors = printed(*argv)
        assert hidden(out + errors) == ""
    assert visible(ESCAPES)[:12] in printed(runs.main, "--runs", str(two))[1]
    printed(report.main, str(two / "policy"))
    assert "<b>" not in (two / "policy" / "report.html").read_text()


def test_a_name_of_a_folder_is_no_command_to_the_terminal(two):
    (two / "policy").rename(two / "evil\x1b[31m")
    _, out, _ = printed(runs.main, "--runs", str(two))
    assert "evil\\x1b[31m" in out


def test_a_cut_parquet_part_is_one_line(two, ppo):
    shutil.copytree(ppo, two / BAD)
    (part,) = (two / BAD / "events" / "ROUND_COMPLETED").glob("*.parquet")
    part.write_bytes(part.read_bytes()[:-40])
    assert states(two)["policy"] is RunState.FINISHED
    status, _, errors = printed(show.main, str(two / BAD))
    assert (status, errors.count("\n")) == (2, 1)
    assert str(part) in errors


def test_a_result_that_picks_no_network_or_spent_without_end_is_shown_or_refused(two):
    changed(two / "grown", "result.json", lambda it: it.update(pick=99, runs="Infinity"))
    assert states(two)["grown"] is RunState.FINISHED
    assert printed(report.main, str(two / "grown"))[0] == 0
    assert "its pick 99 is no network" in (two / "grown" / "report.html").read_text()
    assert "finished" in str(_row(run_summary(two / "grown")))


def test_the_terminal_interface_lists_a_broken_run_and_the_others(two):
    changed(two / "grown", "search.json", lambda it: it.update(compute=10**400))
    changed(two / "policy", "run.json", lambda it: it.update(created=ESCAPES))

    async def look() -> str:
        app = EsperTUI(two, None)
        async with app.run_test(size=(120, 24)) as pilot:
            await app.workers.wait_for_complete()
            await pilot.pause()
            return screen_text(app)

    found = asyncio.run(look())
    assert "! broken" in found
    assert "✓ finished" in found
    assert hidden(found) == ""
