"""Precedence of defaults, preset, file and flags; flag syntax."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.leyline.codec import to_json
from esper.scripts.cli.flags import flag_value, insert_flag_value, int_flag_value
from esper.scripts.train.config import Train, read_train
from esper.scripts.train.learner_config import TrainPPO, read_train_ppo
from esper.simic.agent.schedule import Schedule
from esper.simic.training.config import PRESETS, TrainingConfig, preset
from support import refused


@dataclass(frozen=True)
class Setting:
    """One setting: where it stands in a file, its flag, and values it may have."""

    path: str
    flag: str
    values: st.SearchStrategy

    def argv(self, value: object) -> list[str]:
        if isinstance(value, bool):
            return [self.flag if value else self.flag.replace("--", "--no-", 1)]
        if isinstance(value, Schedule):
            reported = [value.start, value.end, value.steps] if value.steps else [value.start]
            return [self.flag, *map(str, reported)]
        if isinstance(value, tuple):
            return [self.flag, *map(str, value)]
        return [self.flag, str(value)]


rates = st.floats(1e-5, 1.0).map(lambda x: round(x, 5))
SETTINGS = [
    Setting("rounds", "--rounds", st.integers(1, 300)),
    Setting("seed", "--seed", st.integers(0, 1000)),
    Setting("use_amp", "--use-amp", st.booleans()),
    Setting("task.blueprints", "--blueprints", st.sampled_from([(), ("norm",), ("gate", "norm")])),
    Setting("task.episode_length", "--episode-length", st.none() | st.integers(1, 99)),
    Setting("task.rent", "--rent", rates),
    Setting("task.data", "--data", st.sampled_from(["files", "synthetic"])),
    Setting("population.envs", "--envs", st.integers(1, 99)),
    Setting("population.profile", "--profile", st.sampled_from(["exact", "fast"])),
    Setting("population.rollout_steps", "--rollout-steps", st.none() | st.integers(1, 9)),
    Setting("ppo.gamma", "--gamma", rates),
    Setting("ppo.epochs", "--epochs", st.integers(1, 9)),
    Setting("ppo.target_kl", "--target-kl", st.none() | rates),
    Setting("ppo.learning_rate", "--learning-rate", st.builds(Schedule, rates, rates, st.just(5))),
    Setting("ppo.entropy", "--entropy", st.builds(Schedule, rates)),
    Setting("ppo.exploration", "--exploration", st.builds(Schedule, rates, rates, st.just("run"))),
    Setting("ppo.network.width", "--width", st.sampled_from([16, 32, 64])),
    Setting("reward.rollback_penalty", "--reward.rollback-penalty", rates),
]


def get(config: TrainingConfig, path: str) -> object:
    return reduce(getattr, path.split("."), config)


def nested(values: dict[str, object]) -> dict[str, object]:
    """`{"a.b": 1}` as `{"a": {"b": 1}}`, as a file says it."""
    tree: dict = {}
    for path, value in values.items():
        *sections, leaf = path.split(".")
        place = reduce(lambda at, name: at.setdefault(name, {}), sections, tree)
        place[leaf] = to_json(value)
    return tree


some = st.fixed_dictionaries({}, optional={s.path: s.values for s in SETTINGS})


@settings(max_examples=30)
@given(st.sampled_from(["", *PRESETS]), some, some, st.booleans())
def test_flags_win_then_the_file_then_the_preset(name, in_file, in_flags, has_file):
    check_order(name, in_file, in_flags, has_file)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.sampled_from(["", *PRESETS]), some, some, st.booleans())
def test_flags_win_then_the_file_then_the_preset_at_length(name, in_file, in_flags, has_file):
    check_order(name, in_file, in_flags, has_file)


def check_order(name, in_file, in_flags, has_file):
    argv = [w for s in SETTINGS if s.path in in_flags for w in s.argv(in_flags[s.path])]
    with TemporaryDirectory() as folder:
        if has_file:
            path = Path(folder) / "mine.json"
            path.write_text(json.dumps(nested(in_file)))
            argv = ["--config", str(path), *argv]
        read = read_train_ppo([*argv, *(["--preset", name] if name else [])])
    said = (in_file if has_file else {}) | in_flags
    rounds = said.get("rounds", TrainingConfig().rounds)
    base = preset(name or "digits_impaired", rounds)
    for setting in SETTINGS:
        wanted = said.get(setting.path, get(base, setting.path))
        assert get(read.training, setting.path) == wanted, setting.path


def leaf_names(entries: dict[str, object], section: str = "") -> Iterator[str]:
    """All settings as `section.name`, without the sections."""
    for name, value in entries.items():
        if isinstance(value, dict):
            yield from leaf_names(value, f"{section}{name}.")
        else:
            yield f"{section}{name}"


def test_every_setting_of_the_learner_is_a_flag(capsys):
    with pytest.raises(SystemExit):
        read_train_ppo(["--help-all"])
    said = capsys.readouterr().out
    leaves = list(leaf_names(to_json(TrainingConfig())))
    schedules = {"start", "end", "steps"}
    for path in leaves:
        section, _, leaf = path.rpartition(".")
        name = section.rpartition(".")[2] if leaf in schedules else leaf
        name = {"name": "task"}.get(name, name).replace("_", "-")
        flag = f"--reward.{name}" if section == "reward" else f"--{name}"
        flag = "--reward" if path == "reward.own" else flag
        assert re.search(rf" {flag}(,| |$)", said, flags=re.MULTILINE), path


def test_a_saved_config_is_the_same_run_again(tmp_path):
    read = read_train_ppo(["--rounds", "12", "--clip", "0.3", "--frozen-heads", "TEMPO", "1"])
    path = tmp_path / "config.json"
    path.write_text(json.dumps(to_json(read.training)))
    assert read_train_ppo(["--config", str(path)]).training == read.training


def test_policies_that_do_not_learn_take_task_and_population_from_a_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("rounds = 9\nseed = 4\n[task]\nrent = 2.0\n[population]\nenvs = 3\n")
    read = read_train("random", ["--config", str(path), "--rent", "5"])
    assert (read.task.rent, read.population.envs, read.seed, read.rounds) == (5.0, 3, 4, 1)
    preset_blueprints = preset("digits_impaired", 1).task.blueprints
    assert preset_blueprints, "the preset named like the task limits them"
    assert read.task.blueprints == preset_blueprints
    assert read_train("random", []) == Train("random")


def test_schedules_are_one_number_or_three():
    read = read_train_ppo(["--learning-rate", "2e-3", "5e-4", "50", "--entropy=0.02"])
    assert read.training.ppo.learning_rate == Schedule(2e-3, 5e-4, 50)
    assert read.training.ppo.entropy == Schedule(0.02)
    assert "START END UPDATES" in refused(lambda: read_train_ppo(["--entropy", "1", "2"]))
    read = read_train_ppo(["--entropy", "0.1", "0.01", "run"])
    assert read.training.ppo.entropy == Schedule(0.1, 0.01, "run")
    line = refused(lambda: read_train_ppo(["--entropy", "1", "2", "rnu"]))
    assert "rnu: UPDATES must be a whole number or run" in line


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--value-coef", "inf"), "value_coef=inf: must be within 0..1e+06"),
        (("--head-entropy", "1", "nan", *"111111"), "head_entropy of SLOT=nan: must be within"),
        (("--target-kl", "nan"), "target_kl=nan: must be above 0, and finite"),
        (("--learning-rate", "nan"), "start and end must be finite"),
        (("--op-prior", "inf", *"00000"), "op_prior=(inf, "),
    ],
)
def test_coefficients_that_are_no_numbers_are_refused_before_anything_runs(flags, says):
    assert says in refused(lambda: read_train_ppo(list(flags)))


def test_the_defaults_are_the_presets(tmp_path):
    assert read_train_ppo([]) == TrainPPO(training=preset("digits_impaired", 100))
    assert read_train_ppo(["--task", "cifar_baseline"]).training == preset("cifar_baseline", 100)


def test_a_flag_is_found_before_the_line_is_read():
    line = ["--rounds", "3", "--task=a", "--seed", "--rounds=5", "--resume", "-h"]
    assert flag_value(line, "--rounds") == "5", "the last one counts"
    assert flag_value(line, "--task") == "a"
    assert flag_value(line, "--seed") is None
    assert flag_value(line, "--resume") is None
    assert flag_value([], "--task") is None
    for argv in (["--run_name", "x"], ["--run_name=x"], ["--run-name", "x"]):
        assert flag_value(argv, "--run-name") == read_train_ppo(argv).run_name == "x"
    assert int_flag_value(["--rounds", "many"], "--rounds") is None
    assert insert_flag_value(["--quiet", "--resume"], "--resume", "x") == [
        "--quiet",
        "--resume",
        "x",
    ]
    assert insert_flag_value(line, "--resume", "x")[-3:] == ["--resume", "x", "-h"]
    assert insert_flag_value(["--resume", "here"], "--resume", "x") == ["--resume", "here"]
