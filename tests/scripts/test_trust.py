"""Task files run only if the command line names them or the user agrees."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from esper.leyline.codec import to_json
from esper.leyline.errors import EsperError
from esper.scripts import compare, evaluate, runs, train
from esper.scripts.cli.trust import require_trust
from esper.scripts.evaluate import _read_evaluate
from esper.scripts.train.config import read_train
from esper.scripts.train.learner_config import read_train_ppo
from esper.simic.training.config import TaskConfig
from esper.simic.training.runs.checkpoint_store import STATE, CheckpointStore, Summary
from esper.simic.training.runs.folder import RunFolder, read_config, read_info
from esper.simic.training.runs.resume import check_changes
from esper.simic.training.vectorized import train_ppo_vectorized
from esper.storage.sealed_json import json_bytes
from resume_support import resumed_run
from run_driver import small_run
from support import refused

CODE = """
from dataclasses import replace
from pathlib import Path
from esper.tasks.registry import get_task_spec

Path(__file__).with_suffix(".ran").touch()
task = replace(get_task_spec("synthetic"), name="mine", slots=("r0c1",), blueprints=("norm",))
"""


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    """A task file that leaves a trace when it is run; a sub-folder is where we are."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = tmp_path / "their task.py"
    path.write_text(CODE)
    return path


def has_run(file: Path) -> bool:
    """Whether it was run since this was last asked."""
    trace = file.with_suffix(".ran")
    found = trace.exists()
    trace.unlink(missing_ok=True)
    return found


def config_of(file: Path):
    return replace(small_run(2), task=TaskConfig(str(file), (), 3, 16, 1))


@pytest.fixture
def foreign(file) -> Path:
    """The folder of a run, as somebody else may send it: its settings name the file."""
    with RunFolder.create(Path("runs"), "x", config_of(file)) as folder:
        state = {"config": to_json(config_of(file)), "task": {"blueprints": ["norm"]}}
        store = CheckpointStore(folder.path / "checkpoints")
        summary = Summary(round=1, rounds=2, score=0.5, best_round=1, best_score=0.5)
        store.write(summary, lambda draft: draft.joinpath(STATE).write_bytes(json_bytes(state)))
        return folder.path.absolute()


def written(name: str, text: str) -> Path:
    Path(name).write_text(text)
    return Path(name).absolute()


def test_no_command_runs_what_only_a_file_names(foreign, file, capsys):
    toml = written("their.toml", f'[task]\nname = "{file}"\n')
    json = written("their.json", f'{{"task": {{"name": "{file}"}}}}')
    round_one = foreign / "checkpoints" / "round-000001"
    for main, argv in (
        (train.main, ["ppo", "--resume", foreign]),
        (train.main, ["ppo", "--resume", foreign, "--dry-run"]),
        (train.main, ["ppo", "--resume"]),
        (train.main, ["ppo", "--resume", foreign, "--config", toml]),
        (train.main, ["ppo", "--config", toml, "--dry-run"]),
        (train.main, ["ppo", "--config", json]),
        (train.main, ["ppo", "--config", foreign / "config.json"]),
        (train.main, ["wait", "--config", toml]),
        (train.main, ["random", f"--config={json}", "--dry-run"]),
        (evaluate.main, [foreign]),
        (evaluate.main, [round_one, "--envs", "1"]),
    ):
        assert main([str(word) for word in argv]) == 2, argv
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert said.endswith(f"add --trust or --task '{file}'\n"), argv
        assert not has_run(file), argv


def test_commands_that_need_no_task_of_theirs_read_a_foreign_folder_without_it(
    foreign, file, capsys
):
    assert runs.main(["--json"]) == 0
    assert foreign.name in capsys.readouterr().out
    assert compare.main(["wait", str(foreign), "--task", "synthetic"]) == 2  # it has no controller
    config, _ = _read_evaluate([str(foreign), "--task", "synthetic"])
    assert config.task.blueprints == (), "a controller takes what the task has"
    assert not has_run(file)


def test_a_file_that_the_command_line_names_or_trusts_is_run(foreign, file):
    resume, named = ["--resume", str(foreign)], ["--task", str(file)]
    toml = written("their.toml", f'[task]\nname = "{file}"\n')
    for checked in (
        lambda: read_train_ppo([*resume, "--trust"]).check(),
        lambda: read_train_ppo([*resume, *named]).check(),
        lambda: read_train_ppo(["--config", str(toml), f"--task={file}"]).check(),
        lambda: read_train_ppo(named).check(),
        lambda: read_train("wait", ["--config", str(toml), "--trust"]).check(),
        lambda: _read_evaluate([str(foreign), "--trust"])[1].check(),
        lambda: _read_evaluate([str(foreign), *named])[1].check(),
    ):
        assert checked().name == "mine"
        assert has_run(file)


def test_naming_another_file_does_not_run_theirs(foreign, file):
    mine = file.with_name("mine.py")
    mine.write_text(CODE)
    read_train_ppo(["--resume", str(foreign), "--task", str(mine)]).check()
    assert has_run(mine)
    assert not has_run(file)


def answered(answer: str, *terminals: str) -> str:
    """What is asked, where these streams are a terminal at which somebody types; a refusal is
    raised."""
    master, slave = os.openpty()
    with ExitStack() as opened:
        opened.callback(os.close, master)
        terminal = {
            "stdin": opened.enter_context(os.fdopen(slave, "r")),
            "stderr": opened.enter_context(os.fdopen(os.dup(slave), "w")),
        }
        patch = opened.enter_context(pytest.MonkeyPatch.context())
        for name in terminals:
            patch.setattr(sys, name, terminal[name])
        os.write(master, answer.encode() + b"\n")
        require_trust("their.py", ["--resume", "x"], Path("x"), trusted=False)
        said = b""
        while b"[y/N]" not in said:  # the terminal may echo the answer in a read of its own
            said += os.read(master, 4096)
        return said.decode()


def test_a_person_at_a_terminal_is_asked():
    for yes in ("y", "YES"):
        asked = answered(yes, "stdin", "stderr")
        assert "x names the task file their.py. Run its code? [y/N]" in asked
    for no in ("", "n", "what?"):
        with pytest.raises(EsperError, match="--trust"):
            answered(no, "stdin", "stderr")
    for one in ("stdin", "stderr"):
        with pytest.raises(EsperError, match="--trust"):
            answered("y", one)


def test_a_name_cannot_speak_to_the_terminal():
    name = "\x1b[2Jharmless\x1b[8m.py"
    line = refused(lambda: require_trust(name, [], Path("x"), trusted=False))
    assert "\x1b" not in line
    assert "harmless" in line


# ---- a run of one's own task file ----------------------------------------------------------------


@pytest.fixture
def own(file) -> Path:
    """A run of one round on the task of the file."""
    config = replace(config_of(file), rounds=1)
    with RunFolder.create(Path("runs"), "own", config) as folder:
        train_ppo_vectorized(config, run_dir=folder)
    assert has_run(file)
    return folder.path


def test_python_resumes_a_task_file_only_where_its_spec_is_given(own, file):
    line = refused(lambda: train_ppo_vectorized(run_dir=own, resume=True))
    assert "spec=config.task.spec()" in line
    assert not has_run(file)
    assert resumed_run(own, spec=read_config(own).task.spec()).changed == ()
    assert has_run(file)


def test_a_task_file_that_was_edited_since_is_told_and_recorded(own, file, tmp_path):
    moved = file.rename(tmp_path / "moved.py")
    moved.write_text(f"{CODE}\n# edited\n")
    config = replace(config_of(moved), rounds=2)
    resumed = resumed_run(own, config, run=False, spec=config.task.spec())
    *settings, edited = resumed.changed
    assert settings == ["rounds: 1 -> 2", f"task.name: {file} -> {moved}"]
    first, second = read_info(own).sessions
    assert len(first.task_file) == len(second.task_file) == 64
    shas = f"SHA-256 {first.task_file[:12]}... -> {second.task_file[:12]}..."
    assert edited == f"task file {moved} changed: {shas}"
    assert second.changed == resumed.changed


def test_a_file_in_place_of_a_known_task_is_another_task(file):
    line = refused(lambda: check_changes(small_run(2), config_of(file)))
    assert "task.name is 'synthetic' there" in line
