"""What a training run is doing right now, from what its listeners hear."""

from __future__ import annotations

import json

import numpy as np

from engine_script import Script
from esper.leyline.protocols import EngineListener
from esper.leyline.stages import OCCUPIED_STAGES
from esper.simic.telemetry import live
from esper.simic.telemetry.listener import ListenerGroup
from esper.simic.telemetry.live import LiveProgress
from esper.simic.training.config import PopulationConfig, TaskConfig, TrainingConfig
from esper.simic.training.vectorized import train_ppo_vectorized
from esper.storage import live as store


class Recorder(EngineListener):
    """The record after every step, beside what the step held."""

    def __init__(self, progress: LiveProgress) -> None:
        self.progress = progress
        self.steps = []

    def on_step(self, record) -> None:
        self.steps.append((record, self.progress.record))


def told(script: Script, monkeypatch, seconds: float) -> list:
    monkeypatch.setattr(live, "WRITE_SECONDS", seconds)
    progress = LiveProgress(script.rounds, "updating the controller")
    heard = Recorder(progress)
    script.play(ListenerGroup([progress, heard]))
    assert progress.record.doing == "updating the controller"
    return heard.steps


def test_round_step_share_and_figures_are_those_of_the_step(monkeypatch):
    script = Script(rounds=2, steps=3)
    for record, found in told(script, monkeypatch, 0.0):
        seen = record.signals
        assert (found.round, found.step, found.steps) == (
            seen.round_index, seen.step + 1, seen.episode_length,
        )  # fmt: skip
        done = seen.round_index + (seen.step + 1) / seen.episode_length
        assert found.share == done / script.rounds
        assert found.score == record.reward_inputs.score_E.mean()
        assert found.accuracy == float(seen.val_accuracy_E.mean())
        held = {stage.name: int(np.sum(seen.slots.stage_ES == stage)) for stage in OCCUPIED_STAGES}
        assert dict(found.stages) == {name: count for name, count in held.items() if count}


def test_members_are_looked_at_once_a_second_and_at_the_end_of_a_round(monkeypatch):
    steps = told(Script(rounds=1, steps=4), monkeypatch, 1000.0)
    looked = [found.score for _, found in steps]
    assert looked[1] == looked[2] == looked[0]
    assert looked[3] == steps[3][0].reward_inputs.score_E.mean()
    assert [found.step for _, found in steps] == [1, 2, 3, 4]


def test_a_run_in_a_folder_records_what_is_under_way_and_removes_it(tmp_path, monkeypatch):
    contents: list[dict] = []
    monkeypatch.setattr(store, "WRITE_SECONDS", 0.001)
    monkeypatch.setattr(
        store, "replace_file", lambda path, content: contents.append(json.loads(content))
    )
    task = TaskConfig("synthetic", episode_length=4, batches_per_step=1)
    config = TrainingConfig(task, PopulationConfig(envs=2, device="cpu"), rounds=2)
    train_ppo_vectorized(config, run_dir=tmp_path / "run")
    assert {one["doing"] for one in contents} >= {"training"}
    assert max(one["round"] for one in contents) == 1
    assert {one["steps"] for one in contents} <= {0, 4}
    assert all(one["session"] for one in contents)
    assert not list((tmp_path / "run").glob("*live*"))
