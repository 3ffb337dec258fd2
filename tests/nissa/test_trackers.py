"""Trackers: they get every figure once, and cannot touch the run, whatever they do."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest

from esper.leyline.errors import install_hint
from esper.nissa.trackers import tracking as tracking_module
from esper.nissa.trackers.names import LIBRARIES, require_trackers
from esper.nissa.trackers.tracking import track_run
from support import refused
from tracker_support import fake_wandb


def track(folder: Path, steps: range, first_step: int = 0) -> None:
    """One session of a run."""
    with track_run(["wandb"], folder, "x", {"seed": 0}, first_step) as tracking:
        for step in steps:
            tracking.log(step, {"score": step / 3, "nothing": float("nan")})


def test_every_figure_arrives_once_as_it_was_and_what_was_not_measured_is_left_out(
    tmp_path, monkeypatch
):
    library = fake_wandb(monkeypatch)
    track(tmp_path, range(3))
    (rows,) = library.rows.values()
    assert rows == [(step, {"score": step / 3}) for step in range(3)]
    assert library.exit_codes == [0]


def test_a_resumed_run_continues_under_its_id_without_steps_that_were_sent(tmp_path, monkeypatch):
    library = fake_wandb(monkeypatch)
    track(tmp_path, range(3))
    track(tmp_path, range(5), first_step=2)
    assert library.steps == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("fails", ["init", "log", "finish"])
def test_a_tracker_that_raises_is_switched_off_with_one_line(tmp_path, monkeypatch, caplog, fails):
    library = fake_wandb(monkeypatch, fails)
    with caplog.at_level(logging.WARNING):
        track(tmp_path, range(3))
    (said,) = caplog.messages
    doing = {"init": "set-up", "log": "logging", "finish": "closing"}[fails]
    assert said.startswith(f"tracker wandb: {doing} failed (ConnectionError")
    assert "\n" not in said
    assert library.exit_codes == ([1] if fails == "log" else [])


def test_what_a_tracker_missed_while_it_was_off_is_sent_by_the_next_session(tmp_path, monkeypatch):
    library = fake_wandb(monkeypatch, "log", after=1)
    track(tmp_path, range(3))
    assert library.steps == [0]
    library.fails = ""
    track(tmp_path, range(4), first_step=3)
    assert library.steps == [0, 1, 2, 3]


def test_a_tracker_that_hangs_is_left_behind(tmp_path, monkeypatch, caplog):
    library = fake_wandb(monkeypatch, "hang")
    monkeypatch.setattr(tracking_module.Tracking.close, "__defaults__", (0.1,))
    began = time.monotonic()
    track(tmp_path, range(3))
    assert time.monotonic() - began < 5.0
    assert caplog.messages == ["tracker wandb: not done after 0 s, left behind"]
    library.let_go.set()


def test_a_damaged_state_switches_the_tracker_off(tmp_path, monkeypatch, caplog):
    fake_wandb(monkeypatch)
    (tmp_path / "trackers").mkdir()
    (tmp_path / "trackers" / "wandb.json").write_text("{")
    track(tmp_path, range(3))
    (said,) = caplog.messages
    assert "wandb.json is damaged" in said


def test_how_the_run_ended_is_passed_on(tmp_path, monkeypatch):
    library = fake_wandb(monkeypatch)
    with pytest.raises(KeyboardInterrupt), track_run(["wandb"], tmp_path, "x", {}):
        raise KeyboardInterrupt
    assert library.exit_codes == [1]


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_missing_library_is_named_with_what_installs_it(monkeypatch, name):
    monkeypatch.setattr("esper.nissa.trackers.names.find_spec", lambda module: None)
    says = refused(lambda: require_trackers([name], "--track"))
    assert says.startswith(f"--track {name}: {name}")
    assert says.endswith(f"not installed; {install_hint(name)}")


def test_wrong_names_of_trackers_are_refused():
    assert "did you mean 'wandb'?" in refused(lambda: require_trackers(["wandbb"]))
    assert "give a list of names" in refused(lambda: require_trackers("wandb"))


def test_no_library_is_imported_before_a_tracker_is_opened():
    code = (
        "import sys, esper.nissa.trackers.tracking, esper.nissa.trackers.wandb_run, "
        "esper.nissa.trackers.mlflow_run, esper.nissa.trackers.tensorboard_files; "
        "sys.exit(len({'wandb', 'mlflow', 'tensorboard', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
