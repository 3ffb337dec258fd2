"""A note on the run of a torchrun job belongs to that job alone, whatever others are called."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from esper.scripts.train.restarts import JobNote, this_agent

ONE = frozenset({"node0:100:5000", "node1:200:6000"})
OTHER = frozenset({"node0:100:9000", "node1:300:6000"})
"""The same machines and, by chance, one process id, but other processes."""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    return tmp_path


def notes(runs: Path) -> list[Path]:
    return sorted(runs.glob(".torchrun-*"))


def test_a_restarted_job_finds_its_run(runs):
    assert JobNote(runs, ONE).run() is None
    JobNote(runs, ONE).keep(runs / "first")
    assert JobNote(runs, ONE).run() == runs / "first"


@pytest.mark.parametrize("agents", [{"node1:200:6000"}, {"node1:200:6000", "node2:1:1"}])
def test_a_job_that_lost_a_machine_or_got_another_finds_its_run(runs, agents):
    JobNote(runs, ONE).keep(runs / "first")
    assert JobNote(runs, frozenset(agents)).run() == runs / "first"


def test_a_job_of_the_same_address_does_not_continue_the_run_of_another(runs):
    JobNote(runs, ONE).keep(runs / "first")
    assert JobNote(runs, OTHER).run() is None
    JobNote(runs, OTHER).keep(runs / "second")
    assert JobNote(runs, ONE).run() == runs / "first", "jobs at the same time keep their notes"
    assert JobNote(runs, OTHER).run() == runs / "second"
    JobNote(runs, OTHER).forget()
    assert JobNote(runs, OTHER).run() is None
    assert JobNote(runs, ONE).run() == runs / "first"


def test_a_job_has_one_note(runs):
    for folder, agents in (("first", ONE), ("second", {"node1:200:6000", "a-new-node:1:1"})):
        JobNote(runs, frozenset(agents)).keep(runs / folder)
    assert len(notes(runs)) == 1
    assert JobNote(runs, frozenset({"a-new-node:1:1"})).run() == runs / "second"


def test_notes_of_jobs_that_were_killed_here_go_and_those_of_other_machines_stay(runs):
    here = socket.gethostname()
    JobNote(runs, frozenset({f"{here}:{os.getpid()}:1"})).keep(runs / "first")
    JobNote(runs, frozenset({this_agent()})).keep(runs / "first")
    JobNote(runs, ONE).keep(runs / "second")
    held = {agent for path in notes(runs) for agent in json.loads(path.read_text())["agents"]}
    assert held == {this_agent(), *ONE}


DAMAGED = ("", "{", "[]", "3", '{"folder": 3, "agents": 4}', '{"folder": "", "agents": ["HOST:"]}')


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_note_belongs_to_nobody(runs, text):
    text = text.replace("HOST", socket.gethostname())
    (runs / ".torchrun-127.0.0.1-29500.json").write_text(text)
    assert JobNote(runs, ONE).run() is None
    JobNote(runs, ONE).keep(runs / "first")
    JobNote(runs, ONE).forget()
    assert JobNote(runs, ONE).run() is None


def test_a_run_that_is_gone_is_not_continued(runs):
    JobNote(runs, ONE).keep(runs / "first")
    (runs / "first").rmdir()
    assert JobNote(runs, ONE).run() is None


def test_no_folder_no_note(tmp_path):
    note = JobNote(tmp_path / "no", ONE)
    note.keep(tmp_path)
    assert note.run() is None


ASK = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parents[2] / "src")!r})
from esper.scripts.train.restarts import this_agent; print(this_agent())
"""


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_agent_is_the_process_above_all_that_have_the_environment_of_a_worker(wrapped):
    worker = os.environ | {"TORCHELASTIC_RESTART_COUNT": "0"}
    argv = [sys.executable, "-c", ASK]
    if wrapped:
        argv = ["sh", "-c", '"$@"; exit $?', "sh", *argv]
    ran = subprocess.run(argv, env=worker, capture_output=True, text=True, check=True)
    host, pid, started = ran.stdout.strip().rsplit(":", 2)
    assert (host, int(pid)) == (socket.gethostname(), os.getpid())
    assert int(started) > 0
