"""How runs of every kind ended and how long they took, from their records alone."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from esper.karn import views
from esper.karn.views import RunState
from esper.storage.folder_lock import FolderLock
from esper.storage.sealed_json import read_document, seal

COMMAND = "esper compare wait 'a b'"


@pytest.fixture(params=["compared", pytest.param("grown", marks=pytest.mark.slow), "ppo"])
def copy(request, tmp_path) -> Path:
    """A run whose files are all as new as a copy's, or as old as an archive's."""
    shutil.copytree(request.getfixturevalue(request.param), tmp_path / request.param)
    for path in tmp_path.rglob("*"):
        os.utime(path, (1e9, 1e9))
    return tmp_path / request.param


def change_last(run: Path, **entries) -> None:
    name = "sessions.json" if (run / "sessions.json").exists() else "run.json"
    document = read_document(run / name)
    document["sessions"][-1] |= entries
    (run / name).write_text(json.dumps(seal(document)))


def test_times_survive_a_copy(copy, request):
    original = views.run_summary(request.getfixturevalue(copy.name))
    found = views.run_summary(copy)
    assert (found.created, found.seconds, found.updated) == (
        original.created, original.seconds, original.updated,
    )  # fmt: skip
    assert found.created > "2020"
    assert 0 <= found.seconds < 600


@pytest.mark.parametrize(
    ("end", "state"),
    [(None, RunState.KILLED), ("INTERRUPTED", RunState.INTERRUPTED), ("FAILED", RunState.FAILED)],
)
def test_killed_interrupted_and_failed_are_told_apart(copy, end, state):
    change_last(copy, end=end, failure="no disk", ended="")
    if copy.name == "compared":
        change_last(copy, command=COMMAND)
    found = views.run_summary(copy)
    assert (found.state, found.problem) == (state, "no disk")
    assert (
        found.resume
        == {
            "compared": COMMAND,
            "grown": "",
            "ppo": f"esper train ppo --resume {copy}",
        }[copy.name]
    )


def test_a_finished_run_needs_no_command(copy):
    found = views.run_summary(copy)
    assert (found.state, found.resume, found.problem) == (RunState.FINISHED, "", "")


def test_the_time_left_is_that_of_the_session_which_runs(compared, tmp_path):
    """Nine of twelve were there; the tenth took as long as each of the last two will."""
    shutil.copytree(compared, tmp_path / "run")
    change_last(tmp_path / "run", before=9, done=10, total=12, end=None)
    lock = FolderLock(tmp_path / "run")
    try:
        found = views.run_summary(tmp_path / "run")
        budget = views.run_summary(tmp_path / "run")
    finally:
        lock.release()
    assert found.state is RunState.RUNNING
    assert (budget.done, budget.total) == (10, 12)
    assert budget.seconds_left == pytest.approx(2 * found.seconds, rel=0.1)


def test_a_damaged_checkpoint_leaves_the_progress_of_the_one_before(ppo, tmp_path):
    shutil.copytree(ppo, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "round-000003" / "checkpoint.json").write_text("{")
    found = views.run_summary(tmp_path / "run")
    assert (found.state, found.done) == (RunState.FINISHED, 2)
    assert "round-000003" in found.problem
