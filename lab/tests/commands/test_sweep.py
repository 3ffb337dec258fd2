"""`esper sweep`: settings to search, refusals, and (with Optuna) whole sweeps."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from esper.leyline.seeds import EVALUATION_SEEDS
from esper.scripts.train.learner_config import read_train_ppo
from esper_lab.sweep import main
from esper_lab.sweep.config import TUNING_SEED, read_sweep
from esper_lab.sweep.database import TABLES, damage_is_one_line, require_sound
from esper_lab.sweep.space import Choices, Range, read_space
from support import refused


def make_database(path: Path) -> None:
    """Tables as Optuna names them, with something in them."""
    with closing(sqlite3.connect(path)) as database:
        for name in TABLES:
            database.execute(f"create table {name} (value text)")
            database.executemany(f"insert into {name} values (?)", [("x" * 500,)] * 20)
        database.commit()


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "head": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "random bytes": lambda path: path.write_bytes(random.Random(0).randbytes(20_000)),
    "zeros": lambda path: path.write_bytes(bytes(20_000)),
    "text": lambda path: path.write_text("trials"),
    "no table": lambda path: execute(path, "drop table trials"),
}


def execute(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute(sql)
        database.commit()


FLAGS = (
    "synthetic", "learning-rate=1e-4..3e-3:log", "epochs=1..3", "--rounds", "1", "--envs", "2",
    "--episode-length", "2", "--batches-per-step", "1", "--batch-size", "8", "--device", "cpu",
    "--evaluation-envs", "3", "--quiet",
)  # fmt: skip


def test_ranges_and_choices_are_read_from_words_and_from_a_file(tmp_path):
    file = tmp_path / "space.toml"
    file.write_text('gamma = "0.9..0.999"\nwidth = [32, 64]\n')
    words = ["learning_rate=1e-4..3e-3:log", "epochs=2..8", "clip=0.1,0.2"]
    assert read_space(words, file) == {
        "gamma": Range(0.9, 0.999, log=False, whole=False),
        "width": Choices(("32", "64")),
        "learning-rate": Range(1e-4, 3e-3, log=True, whole=False),
        "epochs": Range(2, 8, log=False, whole=True),
        "clip": Choices(("0.1", "0.2")),
    }


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no settings to search"),
        (["gamma"], "setting 'gamma': write NAME=LOW..HIGH"),
        (["gamma=0.9.."], "write NAME=LOW..HIGH"),
        (["gamma=0.9..x"], "write NAME=LOW..HIGH"),
        (["gamma=0.9"], "give two different values or more"),
        (["gamma=0.9,0.9"], "give two different values or more"),
        (["gamma=0.99..0.9"], "LOW must be below HIGH"),
        (["gamma=0..1:log"], "begins above 0"),
        (["gamma=0.1..1", "gamma=0.2..1"], "gamma is given twice"),
        (["seed=1..5"], "all trials share --seed"),
    ],
)
def test_a_wrong_range_is_one_line(words, says):
    assert says in refused(lambda: read_space(words, None))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["synthetic", "gama=0.9..0.99"], "did you mean --gamma?"),
        (["synthetic", "gamma=0.9..1.5"], "must be within 0..1"),
        (["synthetic", "gamma=0.9..0.99", "--trials", "0"], "--trials 0"),
        (["synthetic", "gamma=0.9..0.99", "--processes", "0"], "--processes 0"),
        (["synthetic", "gamma=0.9..0.99", "--on", "slurm"], "--on 'slurm'"),
        (["synthetic", "gamma=0.9..0.99", "--seed", str(TUNING_SEED)], "scored on hosts of seed"),
        (["nowhere", "gamma=0.9..0.99"], "unknown task 'nowhere'"),
        (["gamma=0.9..0.99"], "name the task first"),
        ([], "name a task"),
    ],
)
def test_wrong_input_is_one_line(words, says, capsys):
    assert main(words) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_trials_are_scored_on_hosts_of_neither_training_nor_comparisons():
    assert TUNING_SEED not in EVALUATION_SEEDS
    config = read_sweep(["synthetic", "gamma=0.9..0.99", "--rounds", "3", "--envs", "4"])
    training = config.trial_training({"gamma": 0.95, "learning-rate": "1e-3 1e-4 run"})
    assert (training.rounds, training.population.envs, training.ppo.gamma) == (3, 4, 0.95)
    assert training.ppo.learning_rate.end == 1e-4


def numbers(folder: Path) -> list[dict[str, object]]:
    """Trials without their times and numbers, which differ where one was run again."""
    found = json.loads((folder / "sweep.json").read_text())["trials"]
    return [{**trial, "seconds": 0, "number": 0} for trial in found]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_database_is_one_line(tmp_path, damage):
    path = tmp_path / "study.db"
    require_sound(path)  # none yet
    make_database(path)
    require_sound(path)
    DAMAGES[damage](path)
    line = refused(lambda: require_sound(path))
    assert line.startswith(f"{path} is damaged (")
    assert line.endswith("or choose another --out")
    assert "\n" not in line


def test_a_locked_database_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("esper_lab.sweep.database.LOCK_SECONDS", 0.0)
    path = tmp_path / "study.db"
    make_database(path)
    with closing(sqlite3.connect(path)) as other:
        other.execute("begin exclusive")
        assert refused(lambda: require_sound(path)).startswith(f"{path} is locked by another")


def test_what_optuna_raises_on_a_database_is_one_line(tmp_path):
    def fails() -> None:
        with damage_is_one_line(tmp_path / "study.db"):
            raise KeyError("Record does not\nexist\n[SQL: select]")

    assert "study.db is damaged ('Record does not" in refused(fails)


def test_a_sweep_does_not_start_on_a_damaged_database(tmp_path, capsys):
    """With a database of Optuna's own: of a search that was stopped before its first trial."""
    import optuna

    from esper_lab.sweep.study import open_study

    flags = [*FLAGS, "--trials", "1", "--out", str(tmp_path)]
    config = read_sweep(flags)
    study = open_study(config, config.check(), tmp_path)
    study.ask({"epochs": optuna.distributions.IntDistribution(1, 3)})
    path = tmp_path / "study.db"
    sound = path.read_bytes()
    wrong = {
        "no study": lambda path: execute(path, "delete from studies"),
        "values": lambda path: execute(path, "update trial_params set distribution_json = 'x'"),
    }
    for damage in (DAMAGES | wrong).values():
        path.write_bytes(sound)
        damage(path)
        assert main(flags) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {path} is damaged (")


def test_a_sweep_ends_with_a_table_numbers_a_picture_and_settings_that_train_takes(
    tmp_path, capsys
):
    assert main([*FLAGS, "--trials", "2", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "2 trials on synthetic, scored on 3 hosts x 1 controllers" in said
    assert f"esper train ppo --config {tmp_path / 'best.json'}" in said.replace("\n", "")
    assert (tmp_path / "sweep.png").stat().st_size > 10_000
    best = max(json.loads((tmp_path / "sweep.json").read_text())["trials"],
               key=lambda trial: sum(trial["scores"]))  # fmt: skip
    training = read_train_ppo(["--config", str(tmp_path / "best.json")]).training
    assert training.ppo.learning_rate.start == best["values"]["learning-rate"]
    assert main([*FLAGS, "--trials", "2", "--repeats", "2", "--out", str(tmp_path)]) == 2
    assert "repeats is 1 there and 2 here" in capsys.readouterr().err


def test_a_killed_sweep_resumes_as_if_it_had_not_been(tmp_path):
    command = [sys.executable, "-m", "esper", "sweep", *FLAGS, "--trials", "4", "--out"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, stdout=subprocess.DEVNULL)
    killed = subprocess.Popen([*command, str(tmp_path / "cut")], stdout=subprocess.DEVNULL)
    end = time.monotonic() + 300
    while done(tmp_path / "cut") < 2:
        assert killed.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    subprocess.run([*command, str(tmp_path / "cut")], check=True, stdout=subprocess.DEVNULL)
    assert numbers(tmp_path / "cut") == numbers(tmp_path / "whole")


def done(folder: Path) -> int:
    import sqlite3

    if not (folder / "study.db").exists():
        return 0
    try:
        with sqlite3.connect(folder / "study.db") as base:
            query = "select count(*) from trials where state = 'COMPLETE'"
            return int(base.execute(query).fetchone()[0])
    except sqlite3.Error:
        return 0
