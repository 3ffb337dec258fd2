"""Runs of policies that do not learn: folders, resume, stops, task files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from esper.karn.views import RunState, list_runs
from esper.kasmina.export.member import MorphogeneticModel
from esper.scripts import export
from esper.scripts.runs import main as list_runs_command
from esper.scripts.train import main
from esper.simic.training.config import TaskConfig
from esper.simic.training.runs.folder import members_dir, read_info
from esper.simic.training.runs.kept_members import read_members
from esper.simic.training.runs.round_store import RoundStore

TINY = ("--task", "synthetic", "--envs", "2", "--episode-length", "5", "--batches-per-step", "1",
        "--batch-size", "16", "--device", "cpu", "--quiet")  # fmt: skip


def call(*flags: object) -> int:
    return main([str(flag) for flag in flags])


def refuse(capsys, *flags: object) -> str:
    capsys.readouterr()
    assert call(*flags) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said


def only_run(folder: Path) -> Path:
    (run,) = folder.iterdir()
    return run


def results(run: Path) -> list:
    """All stored rounds and the report, without times."""
    rounds = [one.result for one in RoundStore(run).read_all()[0]]
    report = json.loads((run / "report" / "train.json").read_text())["rounds"]
    for done in (*rounds, *report):
        del done["seconds"]
    return [rounds, report, read_members(members_dir(run))]


def test_a_run_resumes_as_if_it_had_never_stopped(tmp_path, capsys):
    """One round and one more against two at once; a random policy draws at every step."""
    assert call("random", *TINY, "--rounds", 2, "--runs", tmp_path / "whole") == 0
    assert call("random", *TINY, "--rounds", 1, "--runs", tmp_path / "parts") == 0
    capsys.readouterr()
    run = only_run(tmp_path / "parts")
    assert call("random", "--resume", "--rounds", 2, "--quiet", "--runs", tmp_path / "parts") == 0
    said = capsys.readouterr().err
    assert "resume: 1 of 2 rounds are done" in said
    assert "rounds: 1 -> 2" in said
    assert results(run) == results(only_run(tmp_path / "whole"))
    assert [session.from_round for session in read_info(run).sessions] == [0, 1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A finished run of two rounds."""
    root = tmp_path_factory.mktemp("runs")
    assert call("wait", *TINY, "--rounds", 2, "--runs", root) == 0
    return only_run(root)


def test_a_run_is_listed_with_its_rounds_and_scores(trained, capsys):
    (found,) = list_runs(trained.parent)
    assert (found.state, found.total, found.done) == (RunState.FINISHED, 2, 2)
    assert list_runs_command(["--runs", str(trained.parent), "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    scores = [one.summary.score for one in RoundStore(trained).read_all()[0]]
    assert (entry["score"], entry["best_score"]) == (scores[-1], max(scores))
    assert (entry["policy"], entry["best_round"]) == ("wait", 1 + scores.index(max(scores)))


def test_nothing_is_overwritten_by_a_second_run(trained, tmp_path):
    root = Path(shutil.copytree(trained.parent, tmp_path / "runs"))
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for _ in range(2):
        assert call("wait", *TINY, "--runs", root) == 0
    assert len(list(root.iterdir())) == 3
    assert all(path.read_bytes() == content for path, content in before.items())


def test_what_would_be_another_run_does_not_resume(trained, capsys):
    for flags, word in (
        (("random", "--resume", trained), "is a run of 'wait'"),
        (("ppo", "--resume", trained), "esper train wait --resume"),
        (("wait", "--resume", trained, "--envs", 5), "population.envs is 2 there and 5 here"),
        (("wait", "--resume", trained, "--rounds", 1), "already has 2 rounds"),
        (("wait", "--resume", trained, "--preset", "plain"), "--preset"),
        (("random", "--resume", "--runs", trained.parent), "no run of policy random"),
        (("ppo", "--resume", "--runs", trained.parent), "holds no run to resume"),
        (("wait", "--keep-members", -1), "--keep-members -1"),
    ):
        assert word in refuse(capsys, *flags), flags


def test_a_damaged_round_is_trained_again(trained, tmp_path, capsys):
    run = Path(shutil.copytree(trained, tmp_path / trained.name))
    path = RoundStore(run).path_of(2)
    path.write_text(path.read_text().replace("0", "1", 1))
    assert call("wait", "--resume", run, "--quiet") == 0
    assert "falling back to 1 rounds" in capsys.readouterr().err
    assert results(run) == results(trained)


def test_a_run_that_cannot_start_leaves_no_folder(tmp_path, capsys):
    assert "fp32 only" in refuse(capsys, "wait", *TINY, "--precision", "bf16", "--runs", tmp_path)
    assert not list(tmp_path.iterdir())


# ---- stops ---------------------------------------------------------------------------------------


def endless(root: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "esper.scripts.train", "fixed:norm@1", *TINY, "--rounds", "500",
         "--keep-members", "1", "--runs", str(root)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def stopped(process: subprocess.Popen[str], root: Path, number: signal.Signals) -> Stopped:
    """Send a signal as soon as two rounds are stored."""
    deadline = time.monotonic() + 60
    while not list(root.glob("*/rounds/round-000002.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    return Stopped(only_run(root), process.returncode, err)


class Stopped(NamedTuple):
    run: Path
    status: int
    err: str


@pytest.fixture(scope="module")
def ends(tmp_path_factory) -> dict[str, Stopped]:
    """A run that Ctrl-C stopped, and one that was killed; started together, as each takes long."""
    numbers = {"kill -9": signal.SIGKILL, "Ctrl-C": signal.SIGINT}
    roots = {name: tmp_path_factory.mktemp("stopped") for name in numbers}
    started = {name: endless(root) for name, root in roots.items()}
    return {name: stopped(started[name], roots[name], numbers[name]) for name in numbers}


def require_loadable(run: Path) -> None:
    """At least two rounds, a member that loads, and no file in between."""
    rounds, problem = RoundStore(run).read_all()
    assert len(rounds) >= 2
    assert not problem
    (best,) = read_members(members_dir(run))
    MorphogeneticModel.load(
        members_dir(run) / best.name, TaskConfig("synthetic").spec().host_factory
    )
    assert best.score == max(max(one.result["outcome"]["score_E"]) for one in rounds)


def test_ctrl_c_keeps_the_finished_rounds_and_their_best_members(ends):
    run, status, err = ends["Ctrl-C"]
    assert status == 130, err
    assert f"resume with: esper train fixed:norm@1 --resume {run}" in err
    require_loadable(run)
    assert list_runs(run.parent)[0].state is RunState.INTERRUPTED


WITHOUT_ESPER = """
import sys, torch
program = torch.export.load(sys.argv[1]).module()
torch.save(program(torch.load(sys.argv[2])), sys.argv[3])
assert not any(name.split(".")[0] == "esper" for name in sys.modules)
"""


def test_the_pt2_file_of_a_member_runs_where_esper_is_not_installed(ends, tmp_path):
    run, file = ends["Ctrl-C"].run, tmp_path / "best.pt2"
    assert export.main([str(run), str(file)]) == 0
    spec = TaskConfig("synthetic").spec()
    inputs = torch.randn(3, *spec.input_shape)
    torch.save(inputs, tmp_path / "x.pt")
    subprocess.run(
        [sys.executable, "-c", WITHOUT_ESPER, str(file), "x.pt", "y.pt"],
        cwd=tmp_path, env={"OMP_NUM_THREADS": "1", "PATH": ""}, check=True, timeout=120,
    )  # fmt: skip
    with torch.no_grad():
        best = read_members(members_dir(run))[0]
        member = MorphogeneticModel.load(members_dir(run) / best.name, spec.host_factory)
        wanted = member(inputs)
    torch.testing.assert_close(torch.load(tmp_path / "y.pt"), wanted)


def test_kill_9_leaves_a_folder_that_loads_and_resumes(ends):
    run, status, _ = ends["kill -9"]
    assert status == -signal.SIGKILL
    assert list_runs(run.parent)[0].state is RunState.KILLED
    rounds, problem = RoundStore(run).read_all()
    assert not problem
    assert len(rounds) >= 2
    for one in read_members(members_dir(run)):
        factory = TaskConfig("synthetic").spec().host_factory
        MorphogeneticModel.load(members_dir(run) / one.name, factory)
    assert call("fixed:norm@1", "--resume", run, "--rounds", len(rounds) + 1, "--quiet") == 0
    require_loadable(run)


# ---- a user's own -------------------------------------------------------------------------------

TASK_FILE = """
from dataclasses import replace
from pathlib import Path
from esper.tasks.registry import get_task_spec
slots = tuple((Path(__file__).parent / "slots.txt").read_text().split())
task = replace(get_task_spec("synthetic"), name="mine", slots=slots)
"""


def test_a_task_file_is_copied_and_found_from_anywhere(tmp_path, monkeypatch, capsys):
    """The folder is named after the task; an edited file is copied beside the first."""
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    file = tmp_path / "here" / "my_task.py"
    file.write_text(TASK_FILE)
    (tmp_path / "here" / "slots.txt").write_text("r0c0 r0c1")
    monkeypatch.chdir(tmp_path / "here")
    runs = tmp_path / "runs"
    assert call("wait", *TINY, "--task", "my_task.py", "--runs", runs) == 0
    run = only_run(runs)
    assert run.name.startswith("mine__wait__0__")
    assert (run / "source" / "my_task.py").read_text() == TASK_FILE
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert "--trust" in refuse(capsys, "wait", "--resume", run)
    file.write_text(TASK_FILE + "# edited")
    more = ("--rounds", 2, "--quiet", "--trust")
    assert call("wait", "--resume", run, *more) == 0
    assert sorted(path.name for path in (run / "source").iterdir()) == [
        "my_task-2.py",
        "my_task.py",
    ]
    monkeypatch.chdir(tmp_path / "here")
    assert call("wait", "--resume", "--task", "my_task.py", "--runs", runs, "--quiet") == 0
    file.unlink()
    said = refuse(capsys, "wait", "--resume", run, *more)
    assert "my_task.py is gone" in said
    assert f"{run / 'source' / 'my_task-2.py'}" in said, "the newest copy"


def test_steps_are_recorded_where_asked_and_after_a_resume(tmp_path):
    flags = ("--step-events", "--queue-size", 100, "--telemetry", "minimal")
    assert call("wait", *TINY, *flags, "--rounds", 1, "--runs", tmp_path) == 0
    run = only_run(tmp_path)
    recorded = (run / "events" / "STEP_COMPLETED", run / "events" / "LAST_ACTION")
    assert all(folder.exists() for folder in recorded)
    shutil.rmtree(run / "events")
    assert call("wait", "--resume", "--rounds", 2, "--quiet", "--runs", tmp_path) == 0
    assert all(folder.exists() for folder in recorded)


def test_a_queue_of_nothing_is_refused(tmp_path, capsys):
    assert "--queue-size 0" in refuse(capsys, "wait", *TINY, "--queue-size", 0, "--runs", tmp_path)
