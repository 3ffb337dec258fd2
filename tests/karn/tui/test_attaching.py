"""The terminal interface on folders that are written, damaged, or left behind by a killed run."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from esper.karn import views
from esper.karn.tui.app import EsperTUI
from esper.karn.tui.reader import RunReader
from esper.karn.tui.run_screen import RunScreen
from esper.leyline.errors import EsperError
from esper.scripts.tui import main
from esper.storage.folder_lock import FolderLock
from esper.storage.run_files import EVENTS, POLICY, RUN, RUN_SCHEMA
from esper.storage.tags import change_tags
from tui_support import screen_text

MAX_SECONDS = 90.0
"""Seconds to wait for a run to begin, on a machine that does much else."""
SMALL = ("--task", "synthetic", "--envs", "2", "--episode-length", "6", "--batches-per-step", "1",
         "--batch-size", "16", "--device", "cpu", "--quiet")  # fmt: skip


@pytest.fixture
def run(tmp_path) -> Path:
    """The first files of a run of a policy, whose process is gone."""
    path = tmp_path / "runs" / "tiny"
    path.mkdir(parents=True)
    session = {"started": "2026-01-02 03:04:05", "from_round": 0}
    info = {"task": "synthetic", "seed": 3, "created": "2026-01-02 03:04:05", "sessions": [session]}
    (path / RUN).write_text(json.dumps(info | {"schema": RUN_SCHEMA}))
    (path / POLICY).write_text(json.dumps({"policy": "random"}))
    return path


def test_run_becomes_live_and_killed_again(run):
    async def look() -> list[str]:
        app = EsperTUI(run.parent, run)
        async with app.run_test(size=(80, 24)) as pilot:
            found = [await now_shown(app, pilot)]
            lock = FolderLock(run)
            found.append(await now_shown(app, pilot))
            lock.release()
            return [*found, await now_shown(app, pilot)]

    gone, live, gone_again = asyncio.run(look())
    assert "✗ killed" in gone
    assert "▶ running" in live
    assert "process was killed" in " ".join(gone_again.split())


def test_the_list_shows_tags(run):
    change_tags(run, add=["[b]good"])

    async def look() -> str:
        app = EsperTUI(run.parent)
        async with app.run_test(size=(120, 24)) as pilot:
            return await now_shown(app, pilot)

    assert "tiny  [b]good  01-02" in asyncio.run(look())


def test_half_written_and_damaged_files_are_survived(run):
    reader = RunReader(run)
    assert reader.read().problem == ""
    event = {"type": "RUN_FINISHED", "round_index": None, "step": None, "wall_time": 1.0,
             "payload": {"status": "COMPLETED"}}  # fmt: skip
    whole = json.dumps(event) + "\n"
    (run / EVENTS).write_text(whole + whole[:20])
    assert len(reader.read().events) == 1
    (run / EVENTS).write_text(whole + whole)
    assert len(reader.read().events) == 2
    (run / "events" / "PPO_UPDATED").mkdir(parents=True)
    (run / "events" / "PPO_UPDATED" / "part-00001.parquet").write_bytes(b"PAR1 cut off")
    (run / EVENTS).write_text(whole * 3)
    damaged = reader.read()
    assert "part-00001.parquet" in damaged.problem
    assert len(damaged.events) == 3
    (run / RUN).write_text('{"task": ')
    assert "run.json is damaged" in reader.read().problem
    shutil.rmtree(run)
    assert "tiny" in reader.read().problem


def test_list_of_runs_opens_the_chosen_one(run):
    async def look() -> tuple[str, bool, bool]:
        app = EsperTUI(run.parent)
        async with app.run_test(size=(80, 24)) as pilot:
            await settle(app, pilot)
            listed = screen_text(app)
            await pilot.press("enter")
            await settle(app, pilot)
            opened = isinstance(app.screen, RunScreen)
            await pilot.press("r")
            await pilot.pause()
            return listed, opened, isinstance(app.screen, RunScreen)

    listed, opened, still = asyncio.run(look())
    assert "tiny" in listed
    assert "Open" in listed
    assert opened
    assert not still


def test_folder_without_runs_is_refused_in_one_line(tmp_path):
    with pytest.raises(EsperError, match="holds no run"):
        EsperTUI(tmp_path, tmp_path)


def test_output_that_is_no_terminal_is_refused_in_one_line(run, capsys):
    assert main([str(run)]) == 2
    assert capsys.readouterr().err.count("needs a terminal") == 1


async def now_shown(app, pilot) -> str:
    """What is shown after one more look at the run."""
    await settle(app, pilot)
    app.screen.poll()
    await settle(app, pilot)
    return screen_text(app)


async def settle(app, pilot) -> None:
    await app.workers.wait_for_complete()
    await pilot.pause()


# ---- a real run ---------------------------------------------------------------------------------


def test_attaches_to_a_live_run_and_survives_its_kill(tmp_path):
    argv = ["train", "random", *SMALL, "--rounds", "100000", "--runs", str(tmp_path)]
    job = subprocess.Popen([sys.executable, "-m", "esper.scripts.main", *argv])
    try:
        run = wait_for(lambda: next(iter(views.list_runs(tmp_path)), None)).path
        rounds, live, after = asyncio.run(watch(run, job))
    finally:
        job.kill()
        job.wait()
    assert rounds[0] < rounds[1]
    assert "▶ running" in live
    assert "✗ killed" in after
    assert "process was killed" in " ".join(after.split())


async def watch(run: Path, job: subprocess.Popen[bytes]) -> tuple[tuple[int, int], str, str]:
    """Rounds seen while it runs, and what is shown before and after kill -9."""
    app = EsperTUI(run.parent, run)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = app.screen
        assert isinstance(screen, RunScreen)

        async def until(holds) -> None:
            ends = time.monotonic() + MAX_SECONDS
            while not (screen.shot and holds(screen.shot)):
                assert time.monotonic() < ends
                await pilot.pause(0.1)

        await until(lambda shot: shot.rounds)
        first = len(screen.shot.rounds)
        await until(lambda shot: len(shot.rounds) > first)
        live, rounds = screen_text(app), (first, len(screen.shot.rounds))
        job.send_signal(signal.SIGKILL)
        await until(lambda shot: shot.summary.state is views.RunState.KILLED)
        await pilot.pause()
        return rounds, live, screen_text(app)


def wait_for(find):
    ends = time.monotonic() + MAX_SECONDS
    while (found := find()) is None:
        assert time.monotonic() < ends
        time.sleep(0.1)
    return found
