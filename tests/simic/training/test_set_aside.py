"""Unreadable checkpoints are moved aside and never take a resumed run back.

What must hold: all checkpoints under a `round-` name are of the history that the last session went
on in; whatever cannot be read is kept, byte for byte, under another name.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.karn.views import list_runs
from esper.leyline import EsperError
from esper.simic.agent.schedule import Schedule
from esper.simic.training.config import TrainingConfig
from esper.simic.training.runs.checkpoint_store import (
    MANIFEST,
    SCHEMA,
    CheckpointStore,
    Summary,
    verify,
)
from esper.simic.training.runs.checkpoints import find_checkpoint
from esper.simic.training.runs.folder import RunFolder, read_info
from esper.storage import manifest
from esper.storage.atomic import write_atomic
from esper.storage.sealed_json import seal
from resume_support import DEADLY, die_at, newest, resumed_run
from run_driver import small_run
from support import refused

RATE = 3e-5
"""Of the second history, so that it can be told from the first."""


@pytest.fixture
def run(four, tmp_path) -> Path:
    """A run of four rounds, to be spoilt."""
    return Path(shutil.copytree(four, tmp_path / four.name))


def other_rate(rounds: int = 4) -> TrainingConfig:
    config = small_run(rounds)
    return replace(config, ppo=replace(config.ppo, learning_rate=Schedule(RATE)))


def of(run: Path, number: int) -> Path:
    return run / "checkpoints" / f"round-{number:06d}"


def aside(run: Path, number: int) -> Path:
    return run / "checkpoints" / f"aside-round-{number:06d}"


def content(path: Path) -> dict[Path, bytes]:
    return {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}


class BadDisk:
    """Folders whose files cannot be read for a while, whatever they are called."""

    def __init__(self, *bad: Path) -> None:
        self._bad = {path.stat().st_ino for path in bad}
        self._read = manifest.read_bytes

    def __call__(self, path: Path, advice: str = "") -> bytes:
        if path.parent.stat().st_ino in self._bad:
            raise EsperError(f"cannot read {path}: {os.strerror(errno.EIO)}")
        return self._read(path)


def stop_after(rounds: int):
    def stop(trainer, record) -> None:
        if trainer.engine.round == rounds:
            raise RuntimeError("power cut")

    return stop


def rates(run: Path) -> list[float]:
    return [record.metrics.learning_rate for record in newest(run).load_history()]


def test_what_a_newer_esper_wrote_is_refused_and_stays(run):
    """It is whole: an older install that is started by mistake takes no round away from the run."""
    manifest = of(run, 4) / MANIFEST
    data = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(seal(data | {"schema": SCHEMA + 1})))
    before = content(run / "checkpoints")
    assert "has schema" in refused(lambda: resumed_run(run))
    assert content(run / "checkpoints") == before


# ---- readable again -----------------------------------------------------------------------------


def test_readable_again_it_does_not_take_the_run_back(run, monkeypatch):
    """Rounds 3 and 4 cannot be read; the run goes on from 2 otherwise; then the disk is back."""
    before = {number: content(of(run, number)) for number in (3, 4)}
    first = rates(run)[0]
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "read_bytes", BadDisk(of(run, 3), of(run, 4)))
        with pytest.raises(RuntimeError, match="power cut"):
            resumed_run(run, other_rate(), hooks=[stop_after(3)])
    assert newest(run).path == of(run, 3)
    assert rates(run) == [first, first, RATE]
    resumed = resumed_run(run)
    assert resumed.checkpoint == of(run, 3)
    assert rates(run) == [first, first, RATE, RATE]
    for number, files in before.items():
        assert content(aside(run, number)) == files
        assert verify(aside(run, number)).round == number, "whole, and can be asked for by name"
        assert find_checkpoint(aside(run, number)).summary.round == number


def test_readable_again_before_a_round_was_done_it_does_not_take_the_run_back(run, monkeypatch):
    """From the session on that went on without it, whatever became of that."""
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "read_bytes", BadDisk(of(run, 4)))
        resumed = resumed_run(run, other_rate(), run=False)
    assert resumed.checkpoint == of(run, 3)
    reported, kept = resumed.notes
    assert f"falling back to {of(run, 3)}" in reported
    assert str(aside(run, 4)) in kept
    again = resumed_run(run, run=False)
    assert (again.checkpoint, again.notes) == (of(run, 3), ())


@pytest.mark.parametrize("name", ["history.jsonl", "state.json", "checkpoint.json"])
def test_a_file_that_is_mended_where_it_lies_changes_nothing(run, name):
    whole = (of(run, 4) / name).read_bytes()
    (of(run, 4) / name).write_bytes(whole[:-1])
    assert resumed_run(run, other_rate(), run=False).checkpoint == of(run, 3)
    (aside(run, 4) / name).write_bytes(whole)
    assert verify(aside(run, 4)).round == 4
    assert resumed_run(run, run=False).checkpoint == of(run, 3)


def test_a_run_that_only_was_looked_at_stays_as_it_is(run, monkeypatch):
    """Until it goes on nothing is decided: a checkpoint that is readable again is the newest."""
    monkeypatch.setattr(manifest, "read_bytes", BadDisk(of(run, 4)))
    assert len(list_runs(run.parent)) == 1
    find_checkpoint(run)
    refused(lambda: resumed_run(run, small_run(2)))  # fewer rounds than are done
    monkeypatch.undo()
    assert resumed_run(run, run=False).checkpoint == of(run, 4)


def test_lists_and_judgement_pass_over_what_was_set_aside(run):
    best = find_checkpoint(run).path
    with RunFolder.open(run):
        moved = CheckpointStore(run / "checkpoints").move_newer_aside(of(run, 2))
    assert moved == [aside(run, 4), aside(run, 3)]
    (listed,) = list_runs(run.parent)
    assert (listed.problem, listed.done) == ("", 2)
    assert find_checkpoint(run).path == (best if best.exists() else of(run, 2))


# ---- faults while it is done --------------------------------------------------------------------


def test_where_it_cannot_be_set_aside_no_session_begins(run, monkeypatch):
    (of(run, 4) / "state.json").unlink()
    before, sessions = content(run / "checkpoints"), read_info(run).sessions

    def closed(self: Path, target: Path) -> Path:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "rename", closed)
    line = refused(lambda: resumed_run(run))
    assert f"cannot set unreadable checkpoints aside in {run / 'checkpoints'}" in line
    assert "Read-only file system" in line
    assert "resume again" in line
    monkeypatch.undo()
    assert content(run / "checkpoints") == before
    assert read_info(run).sessions == sessions


def put(store: CheckpointStore, number: int, token: str) -> Path:
    """A checkpoint of a file to be spoilt, and of one that says which it is."""

    def write_files(folder: Path) -> None:
        write_atomic(folder / "token", token.encode())
        write_atomic(folder / "state.json", f"of {token}".encode())

    return store.write(Summary(number, 99, 0.0, number, 0.0), write_files)


def tokens_in(store: CheckpointStore) -> dict[str, Path]:
    """Every checkpoint that is there under any name."""
    return {path.read_text(): path.parent for path in store.path.glob("*/token")}


def test_killed_at_any_moment_all_are_there_and_the_same_one_is_gone_on_from(tmp_path):
    before = CheckpointStore(tmp_path / "before", keep=9)
    for number in range(1, 6):
        put(before, number, f"t{number}")
    for number in (4, 5):
        (before.path / f"round-{number:06d}" / "state.json").write_text("spoilt")
    calls = 0
    while True:
        calls += 1
        store = CheckpointStore(tmp_path / str(calls), keep=9)
        shutil.copytree(before.path, store.path)
        child = os.fork()
        if not child:
            die_at(calls, DEADLY)
            store.move_newer_aside(store.newest_valid().path)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert sorted(tokens_in(store)) == ["t1", "t2", "t3", "t4", "t5"]
        assert store.newest_valid().path.name == "round-000003"
        store.move_newer_aside(store.newest_valid().path)
        assert [path.name[-1] for path in store.paths()] == ["1", "2", "3"]
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    assert calls == 5, "two renames, each synced"


def test_a_round_that_is_set_aside_twice_has_two_names(tmp_path):
    store = CheckpointStore(tmp_path)
    put(store, 1, "a")
    for token in ("b", "c", "d"):
        (put(store, 2, token) / "state.json").write_text("spoilt")
        store.move_newer_aside(store.newest_valid().path)
    names = [f"aside-round-000002{more}" for more in ("", "-2", "-3")]
    assert sorted(os.listdir(tmp_path)) == [*names, "round-000001"]
    assert [(tmp_path / name / "token").read_text() for name in names] == ["b", "c", "d"]


# ---- any order ----------------------------------------------------------------------------------

STEPS = st.sampled_from(
    ["save", "save", "spoil newest", "spoil last but one", "mend all", "resume"]
)


@pytest.mark.slow
@given(steps=st.lists(STEPS, min_size=10, max_size=25))
@settings(max_examples=150)
def test_whatever_breaks_and_comes_back_a_run_stays_in_its_history(tmp_path_factory, steps):
    """A model knows which checkpoint of a round belongs to the resumed history."""
    store = CheckpointStore(tmp_path_factory.mktemp("c") / "c", keep=3)
    mine: list[str] = []
    spoilt: set[str] = set()
    for made, step in enumerate(steps):
        if step == "save":
            mine.append(f"t{made}")
            put(store, len(mine), mine[-1])
        elif step == "mend all":
            for token in spoilt:
                (tokens_in(store)[token] / "state.json").write_text(f"of {token}")
            spoilt.clear()
        elif step == "resume":
            found = store.newest_valid()
            if found.path is not None:
                mine = mine[: verify(found.path).round]
                assert (found.path / "token").read_text() == mine[-1]
                store.move_newer_aside(found.path)
        else:
            back = 1 if step == "spoil newest" else 2
            for token in tokens_in(store).keys() & mine[-back:][:1]:
                (tokens_in(store)[token] / "state.json").write_text(f"not of {token}")
                spoilt.add(token)
    assert spoilt <= tokens_in(store).keys(), "none was removed"
