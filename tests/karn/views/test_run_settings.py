"""Every setting of every kind of run, flat, by name; what cannot be read is named."""

from __future__ import annotations

import json
import shutil

from esper.karn import views
from esper.karn.views.settings import MAX_VALUE_CHARS
from esper.simic.training.runs.folder import read_config
from search_folder import search_folder
from web_support import comparison


def test_a_training_run_has_every_setting_of_its_config(ppo):
    found = views.read_settings(ppo).values
    config = read_config(ppo)
    assert found["ppo.gamma"] == config.ppo.gamma
    assert found["ppo.learning_rate.start"] == config.ppo.learning_rate.start
    assert found["population.envs"] == config.population.envs
    assert (found["task"], found["seed"]) == ("synthetic", config.seed)
    assert "versions.torch" in found
    assert not [name for name in found if name.startswith(("sessions", "checksum"))]


def test_searches_comparisons_and_audits_have_theirs(tmp_path):
    grown = views.read_settings(search_folder(tmp_path / "grown")).values
    assert (grown["budget.params"], grown["slots"]) == (500, "r0c0, r0c1")
    cmp = comparison(tmp_path / "cmp")
    (cmp / "settings.json").write_text(json.dumps({"task": "x", "optim": {"betas": [0.9, 0.99]}}))
    assert views.read_settings(cmp).values == {"task": "x", "optim.betas": "0.9, 0.99"}
    audit = tmp_path / "audit"
    audit.mkdir()
    (audit / "audit.json").write_text(json.dumps({"hosts": 4, "settings": {"rate": "0.1"}}))
    assert views.read_settings(audit).values == {"hosts": 4, "settings.rate": "0.1"}


def test_pairs_of_names_and_values_are_settings_of_their_own(tmp_path):
    run = comparison(tmp_path / "cmp")
    (run / "settings.json").write_text(json.dumps({"settings": [["lr", "auto"], ["amp", "no"]]}))
    assert views.read_settings(run).values == {"settings.lr": "auto", "settings.amp": "no"}


def test_long_values_are_cut_and_still_told_apart(tmp_path):
    values = []
    for last in (1, 2):
        run = comparison(tmp_path / str(last))
        (run / "settings.json").write_text(json.dumps({"grid": [*range(1000), last]}))
        values.append(views.read_settings(run).values["grid"])
    assert values[0] != values[1]
    assert max(map(len, values)) <= MAX_VALUE_CHARS


def test_a_damaged_record_is_named_and_the_others_are_shown(ppo, tmp_path):
    run = shutil.copytree(ppo, tmp_path / "ppo")
    (run / "config.json").write_text("{")
    found = views.read_settings(run)
    assert found.values["task"] == "synthetic"
    (problem,) = found.problems
    assert "config.json" in problem
