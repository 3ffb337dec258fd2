"""Run folders: created atomically, one trainer at a time, readable in any state."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import esper
from esper.karn.views import RunState, list_runs
from esper.leyline import EsperError
from esper.simic.agent.schedule import Schedule
from esper.simic.training.config import PRESETS, TaskConfig, preset
from esper.simic.training.runs import folder as run_folder
from esper.simic.training.runs.folder import RunFolder, SessionEnd, read_config, read_info
from esper.simic.training.runs.interrupts import Interrupted
from esper.simic.training.runs.policy_file import newest_run
from esper.storage import provenance
from esper.storage.folder_lock import FolderLock, is_locked
from esper.storage.sealed_json import seal
from loop_support import tiny_config
from support import refused


def made(root: Path, name: str = "first", **settings) -> Path:
    """A folder of a run that was begun and closed."""
    with RunFolder.create(root, name, tiny_config(**settings)) as folder:
        return folder.path


# ---- what is in it ------------------------------------------------------------------------------


def test_the_name_says_task_name_seed_and_time(tmp_path):
    path = made(tmp_path / "runs", "a-1.b", seed=7)
    task, name, seed, when = path.name.split("__")
    assert (task, name, seed) == ("synthetic", "a-1.b", "7")
    assert read_info(path).created.translate({ord(c): None for c in "-: "}) == when.replace("-", "")
    assert os.listdir(tmp_path / "runs") == [path.name], "nothing but the folder itself"


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_the_config_comes_back_as_it_was(tmp_path, name):
    config = preset(name, 12)
    ppo = replace(config.ppo, learning_rate=Schedule(1e-3, 1 / 3, 7), value_clip=0.1)
    config = replace(config, ppo=ppo, seed=2**64 - 1)
    with RunFolder.create(tmp_path, "x", config) as folder:
        assert read_config(folder.path) == config
        json.loads((folder.path / "config.json").read_text())


def test_versions_and_revision_are_written_down(tmp_path):
    import numpy
    import torch

    (session,) = read_info(made(tmp_path)).sessions
    versions = dict(session.versions)
    assert versions["torch"] == torch.__version__
    assert versions["numpy"] == numpy.__version__
    assert versions["esper"] == esper.__version__
    assert session.pid == os.getpid()
    assert session.revision == provenance.git_revision()


def test_the_revision_is_that_of_the_source(tmp_path, monkeypatch):
    def git(*argv):
        settings = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", "-C", str(tmp_path), *settings, *argv], capture_output=True,
                              text=True, check=True)  # fmt: skip
        return done.stdout.strip()

    package = tmp_path / "src" / "esper"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(esper, "__file__", str(package / "__init__.py"))
    assert provenance.git_revision() is None, "no repository"
    git("init", "-q")
    assert provenance.git_revision() is None, "a repository of something else"
    git("add", ".")
    git("commit", "-qm", "first")
    assert provenance.git_revision() == git("rev-parse", "HEAD")
    (package / "__init__.py").write_text("x = 1")
    assert provenance.git_revision() == git("rev-parse", "HEAD") + "-dirty"


def test_two_runs_of_one_second_have_two_folders(tmp_path, monkeypatch):
    now = run_folder.time.gmtime(0)
    monkeypatch.setattr(run_folder.time, "gmtime", lambda: now)
    assert made(tmp_path) != made(tmp_path)
    assert len(list_runs(tmp_path)) == 2


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "-x", "ä"])
def test_a_name_that_is_no_file_name_is_refused(tmp_path, name):
    assert repr(name) in refused(lambda: made(tmp_path / "runs", name))
    assert not (tmp_path / "runs").exists()


def test_a_task_from_a_file_is_named_by_its_last_part(tmp_path):
    config = tiny_config()
    config = replace(config, task=replace(config.task, name="/home/me/my tasks.py:small"))
    with RunFolder.create(tmp_path, "x", config) as folder:
        assert folder.path.name.startswith("my-tasks.py-small__x__0__")
        assert folder.info.task == "/home/me/my tasks.py:small"


def test_where_nothing_can_be_written_one_line_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    line = refused(lambda: made(tmp_path / "file"))
    assert "cannot write to" in line
    assert "choose another folder (--runs)" in line


def test_a_read_only_place_is_refused(users_folder):
    users_folder.chmod(0o500)
    try:
        assert "check its permissions" in refused(lambda: made(users_folder))
    finally:
        users_folder.chmod(0o700)


@pytest.mark.parametrize("call", [1, 2])
def test_a_disk_that_is_full_leaves_no_half_folder(tmp_path, monkeypatch, call):
    calls = []

    def full(path, content):
        calls.append(path)
        if len(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        path.write_bytes(content)

    monkeypatch.setattr(run_folder, "write_atomic", full)
    assert "free some space" in refused(lambda: made(tmp_path / "runs"))
    assert os.listdir(tmp_path / "runs") == []


def test_no_room_for_the_lock_leaves_no_hidden_folder(tmp_path):
    root = tmp_path / "runs"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # as if the disk were full
    try:
        line = refused(lambda: made(root))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert line.startswith(f"cannot write to {root}: File too large; free some space")
    assert os.listdir(root) == []


# ---- one trainer at a time ----------------------------------------------------------------------


def test_a_second_trainer_is_kept_out(tmp_path):
    with RunFolder.create(tmp_path, "x", tiny_config()) as folder:
        line = refused(lambda: RunFolder.open(folder.path))
        assert f"process {os.getpid()}" in line
        assert str(folder.path) in line
        assert is_locked(folder.path)
    assert not is_locked(folder.path)
    RunFolder.open(folder.path).close()


def test_a_second_process_is_kept_out(tmp_path, server):
    first = server.start("train", tmp_path, 200)
    first.until("round")
    second = server.start("resume", first.folder)
    assert second.wait() == 2
    line = second.errors.read_text()
    assert f"process {first.pid} on " in line
    assert str(first.folder) in line
    assert line.count("\n") == 1
    assert list_runs(tmp_path)[0].state is RunState.RUNNING
    first.send(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    RunFolder.open(first.folder).close()  # what a killed one leaves keeps nobody out


def test_a_lock_that_nobody_signed_still_keeps_others_out(tmp_path):
    lock = FolderLock(tmp_path)
    (tmp_path / "lock").write_bytes(b"")
    assert "just started" in refused(lambda: FolderLock(tmp_path))
    lock.release()
    lock.release()


def test_listing_runs_does_not_keep_a_trainer_out(tmp_path):
    """Whoever looks holds the lock for an instant; a trainer that starts then waits for it."""
    import fcntl
    import threading

    path = made(tmp_path)
    with (path / "lock").open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.03, looking.close).start()
        RunFolder.open(path).close()


# ---- sessions -----------------------------------------------------------------------------------


def test_every_session_is_written_down_with_its_end(tmp_path):
    path = made(tmp_path)
    with RunFolder.open(path) as folder:
        folder.begin(replace(folder.config, rounds=9), 4, ("rounds: 2 -> 9",))
        folder.end(SessionEnd.FINISHED)
        folder.end(SessionEnd.FAILED)
    first, second = read_info(path).sessions
    assert first.end is SessionEnd.INTERRUPTED
    assert (second.end, second.from_round) == (SessionEnd.FINISHED, 4), "the first end counts"
    assert second.changed == ("rounds: 2 -> 9",)
    assert read_config(path).rounds == 9


def raised_in(path: Path, error: BaseException) -> None:
    with contextlib.suppress(type(error)), RunFolder.open(path) as folder:
        folder.begin(folder.config)
        raise error
    assert not is_locked(path)


def test_an_error_that_ends_a_session_is_written_down(tmp_path):
    path = made(tmp_path)
    raised_in(path, EsperError("no room"))
    raised_in(path, RuntimeError("two\nlines"))
    raised_in(path, Interrupted("SIGINT"))
    ends = [(s.end, s.failure) for s in read_info(path).sessions[1:]]
    assert ends == [
        (SessionEnd.FAILED, "no room"),
        (SessionEnd.FAILED, "RuntimeError: two lines"),
        (SessionEnd.INTERRUPTED, ""),
    ]


# ---- listing ------------------------------------------------------------------------------------


def test_runs_are_listed_with_their_states(tmp_path, server):
    finished = server.done("train", tmp_path, 2).folder
    killed = server.start("train", tmp_path, 200)
    killed.until("round", 2)
    killed.send(signal.SIGKILL)
    killed.wait()
    interrupted = made(tmp_path, "stopped")
    failed = made(tmp_path, "failed")
    raised_in(failed, EsperError("no room"))
    found = {run.path: run for run in list_runs(tmp_path)}
    assert found[finished].state is RunState.FINISHED
    assert found[finished].total == found[finished].done == 2
    assert found[finished].best_score >= found[finished].score
    assert found[finished].resume == ""
    assert found[killed.folder].state is RunState.KILLED
    assert found[killed.folder].done >= 2
    assert found[killed.folder].task == "synthetic"
    assert found[killed.folder].resume == f"esper train ppo --resume {killed.folder}"
    assert found[interrupted].state is RunState.INTERRUPTED
    assert (found[interrupted].done, found[interrupted].score) == (0, None)
    assert (found[failed].state, found[failed].problem) == (RunState.FAILED, "no room")


BROKEN = {
    "empty": (None, "has no run.json"),
    "not json": ("run.json", "not JSON"),
    "another schema": ("run.json", "has schema 99, this Esper reads schema"),
    "a field of the future": ("config.json", "unknown field 'roundz'"),
    "no config": ("config.json", "is missing, and no valid checkpoint has the settings"),
}


@pytest.mark.parametrize("how", sorted(BROKEN))
def test_a_broken_folder_says_what_is_wrong_and_harms_no_other(tmp_path, how):
    good, bad = made(tmp_path, "good"), made(tmp_path, "bad")
    name, says = BROKEN[how]
    if how == "empty":
        (bad / "run.json").unlink()
    elif how == "not json":
        (bad / name).write_text("{")
    elif how == "no config":
        (bad / name).unlink()
    else:
        data = json.loads((bad / name).read_text())
        data |= {"schema": 99} if how == "another schema" else {"roundz": 3}
        (bad / name).write_text(json.dumps(seal(data)))
    found = {run.path: run for run in list_runs(tmp_path)}
    assert found[good].state is RunState.INTERRUPTED
    if how in ("not json", "another schema"):
        assert says in refused(lambda: read_info(bad))
    if how in ("not json", "another schema"):
        assert (found[bad].state, "\n" in found[bad].problem) == (RunState.BROKEN, False)
        assert says in found[bad].problem
    assert newest_run(tmp_path, name="good") == good
    assert says in refused(lambda: RunFolder.open(bad))
    assert not is_locked(bad)


def test_names_that_no_file_system_takes_are_refused_or_shortened(tmp_path):
    line = refused(lambda: made(tmp_path, "n" * 300))
    assert "300 characters, use 80 or fewer" in line
    assert len(line) < 200
    assert not list(tmp_path.iterdir())
    config = replace(tiny_config(seed=2**64 - 1), task=TaskConfig(f"{'t' * 300}.py"))
    with RunFolder.create(tmp_path, "n" * 80, config) as folder:
        assert len(folder.path.name) < 255
        assert read_info(folder.path).task == config.task.name


def test_half_made_folders_and_files_are_not_runs(tmp_path):
    path = made(tmp_path)
    (tmp_path / ".draft.tmp").mkdir()
    (tmp_path / "notes.txt").write_text("")
    assert [run.path for run in list_runs(tmp_path)] == [path]
    assert "does not exist" in refused(lambda: list_runs(tmp_path / "nowhere"))
    assert "is a file" in refused(lambda: list_runs(tmp_path / "notes.txt"))
    assert "does not exist" in refused(lambda: RunFolder.open(tmp_path / "nowhere"))


def test_the_newest_run_can_be_asked_for(tmp_path, monkeypatch):
    seconds = iter(range(10**6))
    real = run_folder.time.gmtime
    monkeypatch.setattr(run_folder.time, "gmtime", lambda: real(next(seconds)))
    first, second = made(tmp_path, "a", seed=1), made(tmp_path, "b", seed=2)
    assert newest_run(tmp_path) == second
    assert newest_run(tmp_path, seed=1) == first
    assert newest_run(tmp_path, task="synthetic", name="a") == first
    assert "name c" in refused(lambda: newest_run(tmp_path, name="c"))
