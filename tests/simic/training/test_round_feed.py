"""`on_round` and trackers of training: what they get, and that the run is the same without them."""

from __future__ import annotations

import logging
import math
import shutil
from pathlib import Path

import pytest

from esper.leyline.telemetry import TelemetryEventType
from esper.nissa import MemorySink
from esper.simic.training.round_feed import _record_figures
from esper.simic.training.runs.checkpoint_store import CheckpointStore
from esper.simic.training.vectorized import train_ppo_vectorized
from loop_support import tiny_config
from resume_support import SPEC, resumed_run, same_runs, trained
from support import refused
from tracker_support import fake_wandb

CONFIG = tiny_config(rounds=2)


def run(root: Path, **settings) -> Path:
    """Two rounds; members are not exported, which takes longer than the rounds."""
    return trained(root, CONFIG, keep_members=0, **settings)


def resume(path: Path, rounds: int = 2, **settings) -> list[int]:
    """Resume a run; returns the rounds it still had to do."""
    seen: list[int] = []

    def on_round(record) -> None:
        seen.append(record.round_index)

    resumed_run(path, tiny_config(rounds), on_round=on_round, **settings)
    return seen


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    """A run without trackers and callbacks."""
    return run(tmp_path_factory.mktemp("plain"))


def test_on_round_gets_the_record_of_every_round_once_it_is_saved(tmp_path):
    saved, seen = [], []

    def on_round(record):
        seen.append(record)
        saved.append(len(CheckpointStore(tmp_path / "run" / "checkpoints").paths()))

    _, history = train_ppo_vectorized(
        CONFIG, run_dir=tmp_path / "run", spec=SPEC, on_round=on_round, keep_members=0
    )
    assert all(one is other for one, other in zip(seen, history, strict=True))
    assert saved == [1, 2]


def test_what_on_round_raises_ends_the_run_which_resumes_without_loss(tmp_path, plain):
    def on_round(record):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        run(tmp_path, on_round=on_round, checkpoint_every=5)
    (path,) = tmp_path.iterdir()
    assert resume(path) == [1]
    assert same_runs(path, plain)


@pytest.mark.parametrize("fails", ["log", "finish"])
def test_weights_are_the_same_with_a_tracker_that_fails(
    tmp_path, plain, monkeypatch, caplog, fails
):
    fake_wandb(monkeypatch, fails, after=1)
    with caplog.at_level(logging.WARNING):
        path = run(tmp_path, track=["wandb"])
    assert same_runs(path, plain)
    assert len(caplog.messages) == 1


def test_trackers_get_the_figures_of_the_events_and_weights_are_the_same(
    tmp_path, plain, monkeypatch
):
    library, events = fake_wandb(monkeypatch), MemorySink()
    assert same_runs(run(tmp_path, track=["wandb"], sinks=[events]), plain)
    (rows,) = library.rows.values()
    rounds = _payloads(events, TelemetryEventType.ROUND_COMPLETED)
    updates = _payloads(events, TelemetryEventType.PPO_UPDATED)
    assert len(rows) == len(rounds) == len(updates) == 2
    for (_, row), summary, update in zip(rows, rounds, updates, strict=True):
        for name, value in row.items():
            if hasattr(summary, name):
                assert getattr(summary, name) == value
            elif name.startswith("ppo/") and name.count("/") == 1:
                assert getattr(update.metrics, name.removeprefix("ppo/")) == value
        assert {"mean_score", "rollbacks", "ppo/approx_kl", "chosen/WAIT"} <= set(row)


def _payloads(events: MemorySink, kind: TelemetryEventType) -> list:
    return [event.payload for event in events.events if event.type is kind]


def test_a_run_that_goes_back_to_an_older_checkpoint_sends_no_step_twice(tmp_path, monkeypatch):
    library = fake_wandb(monkeypatch)
    path = run(tmp_path, track=["wandb"])
    shutil.rmtree(CheckpointStore(path / "checkpoints").paths()[-1])
    assert resume(path, 3, track=["wandb"]) == [1, 2]
    assert library.steps == [0, 1, 2]


@pytest.mark.slow
def test_a_tracker_that_joins_late_gets_all_rounds(tmp_path, monkeypatch):
    library = fake_wandb(monkeypatch)
    path = run(tmp_path)
    resume(path, 3, track=["wandb"])
    assert library.steps == [0, 1, 2]


def test_trackers_without_a_folder_or_a_library_are_refused_before_the_run(tmp_path, monkeypatch):
    fake_wandb(monkeypatch)
    without = refused(lambda: train_ppo_vectorized(CONFIG, spec=SPEC, track=["wandb"]))
    assert without.endswith("without run_dir: trackers keep their files in the run folder")
    monkeypatch.setattr("esper.nissa.trackers.names.find_spec", lambda module: None)
    says = refused(
        lambda: train_ppo_vectorized(CONFIG, run_dir=tmp_path / "x", spec=SPEC, track=["wandb"])
    )
    assert "pip install '.[wandb]'" in says
    assert not (tmp_path / "x").exists()


def test_figures_are_numbers_with_names_that_every_tracker_takes(tmp_path):
    _, (record, *_) = train_ppo_vectorized(tiny_config(rounds=1), spec=SPEC)
    for name, value in _record_figures(record).items():
        assert name.replace("/", "").replace("_", "").isalnum()
        assert isinstance(value, int | float)
        assert math.isnan(value) or math.isfinite(value)
