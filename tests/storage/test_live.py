"""The live record: small, atomic, once a second, gone at the end, and never in the way of a run."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from esper.storage import live
from esper.storage.folder_lock import FolderLock, lock_holder
from esper.storage.live import LiveFile, LiveRecord
from esper.storage.run_files import LIVE


@pytest.fixture
def run(tmp_path):
    """A locked folder."""
    lock = FolderLock(tmp_path)
    yield tmp_path
    lock.release()


def written(run: Path) -> dict:
    deadline = time.monotonic() + 10
    while not (run / LIVE).exists():
        assert time.monotonic() < deadline, "nothing was written"
        time.sleep(0.01)
    return json.loads((run / LIVE).read_text())


def test_what_is_under_way_is_in_the_folder_until_the_session_ends(run):
    with LiveFile(run, lambda: LiveRecord("training", step=7, steps=24)):
        found = written(run)
        assert (found["doing"], found["step"], found["steps"]) == ("training", 7, 24)
        assert found["session"] == lock_holder(run)
        assert abs(time.time() - found["written"]) < 10
    assert not list(run.glob(f"*{LIVE}*"))
    assert [one.name for one in run.iterdir()] == ["lock"]


def test_it_is_written_once_a_second_at_most_however_often_it_changes(run, monkeypatch):
    steps, contents = iter(range(10_000)), []
    monkeypatch.setattr(live, "WRITE_SECONDS", 0.1)
    monkeypatch.setattr(live, "replace_file", lambda path, content: contents.append(content))
    with LiveFile(run, lambda: LiveRecord(step=next(steps))):
        time.sleep(0.35)
    assert 1 <= len(contents) <= 4


def test_it_is_written_again_only_when_it_changes_or_grows_old(run, monkeypatch):
    contents = []
    monkeypatch.setattr(live, "WRITE_SECONDS", 0.01)
    monkeypatch.setattr(live, "replace_file", lambda path, content: contents.append(content))
    with LiveFile(run, lambda: LiveRecord("training", score=float("nan"))):
        time.sleep(0.2)
    assert len(contents) == 1
    monkeypatch.setattr(live, "REFRESH_SECONDS", 0.0)
    with LiveFile(run, lambda: LiveRecord("training")):
        time.sleep(0.2)
    assert len(contents) > 3


def test_a_session_removes_what_a_killed_one_left(run, monkeypatch):
    (run / LIVE).write_text("{}")
    (run / f".{LIVE}.abc.tmp").write_text("half")
    monkeypatch.setattr(live, "replace_file", lambda path, content: None)
    with LiveFile(run, LiveRecord):
        assert [one.name for one in run.iterdir()] == ["lock"]


def test_a_folder_that_cannot_be_written_ends_no_run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    steps = iter(range(100))
    with LiveFile(folder, lambda: LiveRecord(step=next(steps))) as file:
        shutil.rmtree(folder)
        file._write()
        time.sleep(0.05)
        assert file._thread.is_alive()
