"""Files of older versions are read with the earlier behaviour and resume to the same bits."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.karn.views import list_runs
from esper.leyline import ActionHead, LifecycleOp, SeedStage
from esper.leyline.codec import default_of, read_record, to_json
from esper.leyline.records import BatchSummary
from esper.scripts.evaluate import training_config
from esper.simic.training.config import PRESETS, TrainingConfig, preset
from esper.simic.training.history import RoundRecord
from esper.simic.training.runs.checkpoint_store import CheckpointStore
from esper.simic.training.runs.checkpoints import read_checkpoint, task_facts, with_new_defaults
from esper.simic.training.runs.folder import (
    Retention,
    RunFolder,
    SessionSettings,
    read_config,
    read_info,
    read_retention,
    read_session_settings,
)
from payload_support import build
from resume_support import SPEC, edit, edit_checkpoint, newest, resumed_run, same_runs
from run_driver import small_run
from support import refused


def drop(document: dict[str, Any], *places: str) -> None:
    """Take settings out of a document, each named from the top down."""
    for place in places:
        *sections, name = place.split(".")
        inner = document
        for section in sections:
            inner = inner[section]
        del inner[name]


def made_older(run: Path) -> None:
    """Files as they were before some settings were there."""
    edit(run / "config.json", lambda it: drop(it, "population.graphs", "reward.wait_baseline"))
    for path in CheckpointStore(run / "checkpoints").paths():
        edit_checkpoint(
            path,
            "state.json",
            lambda it: drop(
                it,
                "config.population.graphs",
                "config.reward.wait_baseline",
                "task.optim.schedule",
                "task.augmentation",
            ),
        )
        edit_checkpoint(
            path,
            "agent/manifest.json",
            lambda it: drop(it, "content.config.exploration", "content.config.network.op_prior"),
        )


def test_an_older_run_goes_on_bit_for_bit(copied, four):
    made_older(copied)
    resumed = resumed_run(copied, small_run(4))
    assert resumed.checkpoint.name == "round-000002"
    assert (resumed.changed, resumed.notes) == (("rounds: 2 -> 4",), ())
    assert same_runs(copied, four)
    assert read_config(copied) == small_run(4), "written anew, with everything"


def test_what_was_done_before_a_setting_was_there():
    """Whoever changes such a default changes what older runs are read as: their schema must grow,
    and the reader say what they did."""
    written: Any = to_json(small_run(2))
    drop(written, "population.graphs")
    assert read_record(TrainingConfig, written, "config.json").population.graphs == "auto"


def test_an_older_run_is_listed_and_can_be_judged(copied):
    made_older(copied)
    (run,) = list_runs(copied.parent)
    assert (run.problem, run.done) == ("", 2)
    assert training_config(copied) == small_run(2)
    for path in CheckpointStore(copied / "checkpoints").paths():
        assert training_config(path) == small_run(2)
        assert read_checkpoint(path).load_agent().config == small_run(2).ppo


@pytest.mark.parametrize("name", ["retention.json", "keeping.json"])
def test_an_older_retention_file_is_read(copied, name):
    (copied / name).write_text('{"keep": 7}')
    assert read_retention(copied) == Retention(every=1, keep=7)


@pytest.mark.parametrize("name", ["session.json", "surroundings.json"])
def test_an_older_file_of_session_settings_is_read(copied, name):
    (copied / name).write_text('{"evaluation_envs": 3, "telemetry": "debug"}')
    assert read_session_settings(copied) == SessionSettings(3, telemetry="debug")


def test_the_new_name_wins_once_it_is_written(copied):
    (copied / "keeping.json").write_text('{"keep": 7}')
    with RunFolder.open(copied) as folder:
        folder.save_retention(Retention(every=2, keep=4))
    assert read_retention(copied) == Retention(every=2, keep=4)
    assert json.loads((copied / "keeping.json").read_text()) == {"keep": 7}, "left as it was"


def optional(config: object, prefix: str = "") -> list[str]:
    """Settings that an older file may lack, from the top down."""
    found = []
    for field in fields(config):
        name, value = f"{prefix}{field.name}", getattr(config, field.name)
        if is_dataclass(value):
            found += optional(value, f"{name}.")
        elif default_of(field) is not MISSING:
            found.append(name)
    return found


OPTIONAL = optional(TrainingConfig())


def value_at(config: object, name: str) -> object:
    for part in name.split("."):
        config = getattr(config, part)
    return config


@pytest.mark.parametrize("name", sorted(PRESETS))
@given(missing=st.sets(st.sampled_from(OPTIONAL), max_size=6))
@settings(max_examples=15, deadline=None)
def test_whatever_a_config_lacks_takes_its_default_and_the_rest_stays(name, missing):
    config = preset(name, 12)
    written: Any = to_json(config)
    drop(written, *missing)
    read = read_record(TrainingConfig, written, "config.json")
    for setting in OPTIONAL:
        source = TrainingConfig() if setting in missing else config
        assert value_at(read, setting) == value_at(source, setting)


def test_a_config_from_before_the_plan_phase_has_a_prior_for_each_operation():
    written: Any = to_json(preset("digits_impaired", 12))
    prior = written["ppo"]["network"]["op_prior"]
    written["ppo"]["network"]["op_prior"] = prior[:6]
    read = read_record(TrainingConfig, written, "config.json").ppo.network.op_prior
    assert read == (*prior[:6], 0.0, 0.0, 0.0)


def test_a_history_from_before_the_plan_phase_is_read():
    """Fewer operations and stages: those that were not there were never chosen."""
    record = read_history_record(chosen_OZ=np.ones((6, 9), dtype=np.int64).tolist(), waited=5)
    assert record.chosen_OZ.shape == (len(LifecycleOp), len(SeedStage))
    assert record.chosen_O.tolist() == [5, 9, 9, 9, 9, 9, 0, 0, 0]
    assert record.stopped == 0


def read_history_record(**changes: Any) -> RoundRecord:
    written: Any = to_json(build(RoundRecord, {"head_entropy": (0.0,) * len(ActionHead)}))
    del written["stopped"]
    return read_record(RoundRecord, written | changes, "history")


def test_a_summary_from_before_planted_seeds_is_read():
    written: Any = to_json(build(BatchSummary))
    written["stage_counts"] = [1] * 9
    assert read_record(BatchSummary, written, "event").stage_counts == (*(1,) * 9, 0)
    written["stage_counts"] = [1] * 11
    assert "11 counts" in refused(lambda: read_record(BatchSummary, written, "event"))


# ---- what is still refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["seed", "rounds", "task", "task.name", "population", "population.envs", "ppo", "reward"],
)
def test_what_says_which_run_it_is_is_never_guessed(copied, name):
    edit(copied / "config.json", lambda it: drop(it, name))
    before = (copied / "run.json").read_bytes()
    line = refused(lambda: resumed_run(copied))
    assert f"field {name.rpartition('.')[2]!r} is missing" in line
    assert str(copied / "config.json") in line
    assert (copied / "run.json").read_bytes() == before


def test_an_unknown_setting_is_refused_with_the_nearest_name(copied):
    def misspell(config: dict[str, Any]) -> None:
        config["population"]["graps"] = config["population"].pop("graphs")

    newest_one = newest(copied).path
    edit_checkpoint(newest_one, "state.json", lambda it: misspell(it["config"]))
    line = refused(lambda: resumed_run(copied))
    assert "unknown field 'graps'" in line
    assert "did you mean 'graphs'?" in line
    assert str(newest_one / "state.json") in line
    edit(copied / "config.json", misspell)
    line = refused(lambda: resumed_run(copied))
    assert "did you mean 'graphs'?" in line
    assert str(copied / "config.json") in line


def test_a_wrong_type_is_refused(copied):
    edit(copied / "config.json", lambda it: it["population"].update(graphs=3))
    assert "config.json.population.graphs" in refused(lambda: resumed_run(copied))


def test_settings_that_are_not_those_of_the_checkpoint_are_refused(copied):
    """A line that was lost from config.json alone is no older file: the default is another run."""
    config = replace(small_run(2), ppo=replace(small_run(2).ppo, gamma=0.9))
    edit(copied / "config.json", lambda it: it["ppo"].update(gamma=0.9))
    for path in CheckpointStore(copied / "checkpoints").paths():
        edit_checkpoint(path, "state.json", lambda it: it["config"]["ppo"].update(gamma=0.9))
    assert resumed_run(copied, config, run=False).trainer.engine.round == 2
    edit(copied / "config.json", lambda it: drop(it, "ppo.gamma"))
    sessions = read_info(copied).sessions
    line = refused(lambda: resumed_run(copied))
    assert "ppo.gamma is 0.9 there and 1.0 here" in line
    assert str(copied / "checkpoints" / "round-000002") in line
    assert read_info(copied).sessions == sessions


# ---- facts of the task --------------------------------------------------------------------------


def test_facts_that_came_later_are_those_of_the_defaults():
    saved: Any = task_facts(SPEC)
    assert with_new_defaults(saved, SPEC) == saved
    drop(saved, "optim.host_lr", "score")
    filled: Any = with_new_defaults(saved, SPEC)
    assert filled["optim"]["host_lr"] == type(SPEC.optim)().host_lr
    assert "score" in filled
    assert "host_lr" not in saved["optim"], "what was read is not written to"


def test_a_fact_without_a_default_or_with_another_one_is_refused(copied):
    """The file does not say what `host_lr` was, so it was the default, which is not this task's."""
    path = newest(copied).path
    edit_checkpoint(path, "state.json", lambda it: drop(it, "task.optim.host_lr"))
    assert "task.optim.host_lr is 0.05 there and 0.1 here" in refused(lambda: resumed_run(copied))
    edit_checkpoint(path, "state.json", lambda it: it["task"]["optim"].update(host_lr=0.1))
    edit_checkpoint(path, "state.json", lambda it: drop(it, "task.slots"))
    assert "task.slots is None there" in refused(lambda: resumed_run(copied))
    edit_checkpoint(path, "state.json", lambda it: it["task"].update(slots=list(SPEC.slots), x=1))
    assert "task.x is 1 there and None here" in refused(lambda: resumed_run(copied))
