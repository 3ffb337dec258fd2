"""A run whose files lack something, or have something unknown, is not resumed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from esper.simic.training.runs.checkpoint_store import CheckpointStore
from esper.simic.training.runs.folder import read_info
from esper.storage.run_files import RUN_SCHEMA as SCHEMA
from resume_support import SPEC, edit, edit_checkpoint, newest, resumed_run
from run_driver import small_run
from support import refused


def drop(document: dict[str, Any], place: str) -> None:
    """Take a setting out of a document, named from the top down."""
    *sections, name = place.split(".")
    for section in sections:
        document = document[section]
    del document[name]


@pytest.mark.parametrize("name", ["seed", "task.name", "population.graphs", "reward"])
def test_a_setting_that_is_missing_is_never_guessed(copied, name):
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
    config = replace(small_run(2), ppo=replace(small_run(2).ppo, gamma=0.9))
    edit(copied / "config.json", lambda it: it["ppo"].update(gamma=0.9))
    for path in CheckpointStore(copied / "checkpoints").paths():
        edit_checkpoint(path, "state.json", lambda it: it["config"]["ppo"].update(gamma=0.9))
    assert resumed_run(copied, config, run=False).trainer.engine.round == 2
    edit(copied / "config.json", lambda it: it["ppo"].update(gamma=1.0))
    sessions = read_info(copied).sessions
    line = refused(lambda: resumed_run(copied))
    assert "ppo.gamma is 0.9 there and 1.0 here" in line
    assert str(copied / "checkpoints" / "round-000002") in line
    assert read_info(copied).sessions == sessions


@pytest.mark.parametrize("schema", [SCHEMA - 1, SCHEMA + 1])
def test_a_run_of_another_schema_is_one_line(copied, schema):
    edit(copied / "run.json", lambda it: it.update(schema=schema))
    line = refused(lambda: resumed_run(copied))
    assert f"has schema {schema}, this Esper reads schema {SCHEMA}" in line


def test_a_fact_of_the_task_that_is_missing_or_unknown_is_refused(copied):
    path = newest(copied).path
    edit_checkpoint(path, "state.json", lambda it: drop(it, "task.slots"))
    assert "task.slots is None there" in refused(lambda: resumed_run(copied))
    edit_checkpoint(path, "state.json", lambda it: it["task"].update(slots=list(SPEC.slots), x=1))
    assert "task.x is 1 there and None here" in refused(lambda: resumed_run(copied))
