"""Out-of-range settings and invalid files: one short error line, nothing written."""

from __future__ import annotations

import errno
import os

import pytest

from esper.scripts import compare, evaluate, train
from esper.scripts.cli.command import REFUSED, exit_status_of
from esper.simic.agent.config import PPOConfig
from esper.simic.training.config import PopulationConfig, TaskConfig, TrainingConfig
from esper.simic.training.config_files import resolve
from esper.storage.atomic import write_atomic
from esper.tamiyo.grammar import parse
from esper.tamiyo.network_config import NetworkConfig
from esper.tolaria import EngineConfig
from support import refused

LONG = "a" * 5000
HUGE = 10**400


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("ppo", "--rounds", 10**30), "rounds=1000000000000000000000000000000: must be 1,000,000,"),
        (("ppo", "--envs", 10**12), "envs=1000000000000: must be 1,000,000 or less"),
        (("ppo", "--evaluation-envs", 10**11), "--evaluation-envs 100000000000: must be 1,000,000"),
        (("ppo", "--embedding", 10**12), "embedding=1000000000000: must be 2,048 or less"),
        (("ppo", "--width", 10**20), "width=100000000000000000000: must be 2,048 or less"),
        (
            ("ppo", "--episode-length", HUGE),
            "episode_length=<int, about 400 digits>: must be 1,000",
        ),
        (("ppo", "--keep", 10**20), "--keep 100000000000000000000: must be 1,000,000,000 or less"),
        (("wait", "--rounds", 10**20), "--rounds 100000000000000000000: must be 1,000,000,000 or"),
        (("wait", "--batches-per-step", 10**20), "batches_per_step=100000000000000000000: must be"),
        (("wait", "--rounds", "9" * 5000), "--rounds"),
        (("wait", "--rounds", LONG), "--rounds"),
        (("wait", "--profile", LONG), "'exact', 'fast'"),
        (("ppo", "--task", "synthetic", "--device", LONG), "choose cpu, cuda"),
        (("wait", "--task", LONG), "unknown task"),
        (("wait", "--task", f"{LONG}.py"), "File name too long; use a shorter one"),
        (("wait", "--config", f"{LONG}.toml"), "File name too long"),
        (("wait", "--out", LONG), "File name too long"),
        (("ppo", "--resume", LONG), "File name too long"),
        (("ppo", "--learning_rat", "3"), "did you mean --learning-rate?"),
        (("wait", "--lr", "3"), "--lr: unknown; --help lists the flags"),
    ],
    ids=lambda it: " ".join(str(word)[:24] for word in it[:3]) if isinstance(it, tuple) else "",
)
def test_flags_beyond_any_machine_are_one_short_line(flags, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train.main([str(flag) for flag in flags]) == REFUSED
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert len(said.partition("valid:")[0]) < 300
    assert not list(tmp_path.iterdir()), "nothing was written"


def test_other_commands_are_as_short(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for main, argv, says in (
        (compare.main, ("wait", "--seeds", 10**400), "--seeds <int, about 400 digits>: must be"),
        (compare.main, ("wait", "--envs", 10**20), "must be 1,000,000 or less"),
        (compare.main, (LONG,), "unknown policy"),
        (evaluate.main, (LONG,), "File name too long"),
    ):
        assert main([str(word) for word in argv]) == REFUSED
        said = capsys.readouterr().err
        assert says in said
        assert said.count("\n") == 1
        assert len(said) < 520


def test_a_step_of_thousands_of_digits_is_no_step():
    assert "expected fixed:BLUEPRINT@STEP" in refused(lambda: parse(f"fixed:norm@{'9' * 5000}"))


@pytest.mark.parametrize("value", [HUGE, True, 2.0, "3"], ids=["huge", "bool", "float", "text"])
def test_python_callers_are_refused_as_well(value):
    for made in (
        lambda: TrainingConfig(rounds=value),
        lambda: TrainingConfig(updates_per_rollout=value),
        lambda: TaskConfig(episode_length=value),
        lambda: TaskConfig(batches_per_step=value),
        lambda: PopulationConfig(envs=value),
        lambda: PopulationConfig(rollout_steps=value),
        lambda: PopulationConfig(counterfactual_stride=value),
        lambda: NetworkConfig(width=value),
        lambda: NetworkConfig(embedding=value),
        lambda: PPOConfig(epochs=value),
        lambda: PPOConfig(minibatches=value),
        lambda: EngineConfig(members=value),
    ):
        assert ": must be " in refused(made)


# ---- files ---------------------------------------------------------------------------------------

FILES = [
    (
        "huge.json",
        f'{{"rounds": {HUGE}}}',
        "rounds: <int, about 400 digits>, too large an integer",
    ),
    ("float.json", f'{{"task": {{"rent": {HUGE}}}}}', "task.rent: <int, about 400 digits>"),
    ("float.toml", f"[task]\nrent = {HUGE}", "expected float, at most 1.8e+308"),
    ("schedule.toml", f"[ppo]\nentropy = {HUGE}", "ppo.entropy.start: <int, about 400 digits>"),
    ("schedule.json", '{"ppo": {"entropy": 1e309}}', "1e309 is too large a number"),
    ("many.json", '{"rounds": 1000000000001}', "rounds=1000000000001: must be 1,000,000,000 or"),
    ("index.toml", f"[population]\nfrozen_heads = [['STYLE', 0x{'f' * 5000}]]", "too large"),
    ("nan.toml", "[ppo]\nlearning_rate = nan", "finite"),
    ("digits.json", f'{{"rounds": {"9" * 5000}}}', "thousands of digits"),
    ("digits.toml", f"rounds = {'9' * 5000}", "thousands of digits"),
    (
        "hex.toml",
        f"rounds = 0x{'f' * 5000}",
        "rounds: <int, about 6,021 digits>, too large",
    ),
    ("nan.json", '{"task": {"rent": NaN}}', "NaN is not JSON"),
    ("infinity.json", '{"task": {"rent": Infinity}}', "Infinity is not JSON"),
    ("twice.json", '{"rounds": 1, "rounds": 2}', "'rounds' appears twice"),
    ("twice.toml", "rounds = 1\nrounds = 2", "Cannot overwrite a value"),
    ("deep.json", '{"rounds": ' + "[" * 300 + "]" * 300 + "}", "nested more than 64 levels"),
    ("deep.toml", "rounds = " + "[" * 90 + "]" * 90, "nested more than 64 levels"),
    ("deeper.toml", "rounds = " + "[" * 10**5, "nested too deeply"),
    ("bool.json", '{"rounds": true}', "rounds: True, expected int"),
    ("bool.toml", "[population]\nenvs = false", "population.envs: False, expected int"),
    ("bool for a float.json", '{"task": {"rent": true}}', "task.rent: True, expected float"),
    ("text.json", f'{{"rounds": "{LONG}"}}', "rounds: 'aaaa"),
    ("name.json", f'{{"{LONG}": 1}}', "unknown setting 'aaaa"),
    ("list.json", f'{{"task": ["{LONG}"]}}', "expected a section"),
    ("word.json", f'{{"task": {{"data": "{LONG}"}}}}', "unknown value 'aaaa"),
    ("bytes.toml", b"rounds = 3 # \xff", "is not TOML: 'utf-8' codec can't decode byte 0xff"),
    ("bytes.json", b'{"rounds": 3, "\xe9": 1}', "is not JSON: 'utf-8' codec can't decode"),
    ("date.toml", "rounds = 1979-05-27", "expected int"),
]


@pytest.mark.parametrize(("name", "content", "says"), FILES, ids=[name for name, *_ in FILES])
def test_a_file_that_says_what_no_setting_can_be_is_one_short_line(name, content, says, tmp_path):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    line = refused(lambda: resolve("plain", path))
    assert says in line
    assert str(path) in line
    assert "\n" not in line
    assert len(line) < 350 + len(str(path))


# ---- errors outside of the settings --------------------------------------------------------------


def test_memory_that_runs_out_anywhere_is_one_line(capsys):
    import numpy as np
    import torch

    for work in (lambda: np.empty(2**58), lambda: torch.empty(2**58)):
        assert exit_status_of(work) == REFUSED
        said = capsys.readouterr().err
        assert said.startswith("error: out of memory (")
        assert "lower --envs" in said
        assert said.count("\n") == 1
    with pytest.raises(RuntimeError, match="a fault of ours"):
        exit_status_of(lambda: (_ for _ in ()).throw(RuntimeError("a fault of ours")))


def test_a_name_that_the_file_system_does_not_take_is_one_line(tmp_path, capsys):
    assert exit_status_of(lambda: write_atomic(tmp_path / LONG, b"")) == REFUSED
    said = capsys.readouterr().err
    assert os.strerror(errno.ENAMETOOLONG) in said
    assert len(said) < 350


def test_an_update_has_at_most_a_thousand_epochs():
    PPOConfig(epochs=1000)
    assert "1001" in refused(lambda: PPOConfig(epochs=1001))


def test_a_line_break_in_a_name_makes_no_second_line(capsys):
    assert train.main(["ppo", "--config", "a\nb"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
