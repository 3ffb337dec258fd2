"""64-bit seeds: larger ones are rejected everywhere, valid ones are kept exactly."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from esper.compare.config import Compare
from esper.kasmina import Population
from esper.leyline.seeds import EVALUATION_SEEDS, MAX_SEED
from esper.leyline.telemetry import TelemetryEventType
from esper.scripts import train
from esper.scripts.train.config import Train
from esper.scripts.train.learner_config import read_train_ppo
from esper.simic.training.config import TrainingConfig
from esper.simic.training.config_files import resolve
from esper.simic.training.runs.folder import RunFolder, read_config, read_info
from esper.simic.training.vectorized import train_ppo_vectorized
from esper.tolaria import EngineConfig
from event_files import read_jsonl, read_parquet
from resume_support import SPEC, newest, resumed_run
from run_driver import small_run
from support import refused, tiny_host

BEYOND = [-1, 2**64, 2**64 + EVALUATION_SEEDS[0]]
"""The last is a seed kept for evaluation, modulo 2**64."""


@pytest.mark.parametrize("seed", BEYOND)
def test_a_seed_beyond_64_bits_is_refused_wherever_one_enters(seed, tmp_path):
    toml, saved = tmp_path / "mine.toml", tmp_path / "mine.json"
    toml.write_text(f"seed = {seed}")
    saved.write_text(json.dumps({"seed": seed}))
    for entered in (
        lambda: read_train_ppo(["--seed", str(seed)]),
        lambda: Train("wait", seed=seed).check(),
        lambda: resolve("plain", toml),
        lambda: resolve("plain", saved),
        lambda: TrainingConfig(seed=seed),
        lambda: EngineConfig(seed=seed),
        lambda: Population(tiny_host, ["r0c0"], ["norm"], members=1, seed=seed),
        lambda: Compare(("wait",), first_seed=seed).check(),
    ):
        line = refused(entered)
        assert str(seed) in line
        assert f"0 to {MAX_SEED}" in line


def test_the_command_refuses_it_in_one_line(capsys):
    assert train.main(["ppo", "--seed", str(BEYOND[-1])]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(MAX_SEED) in said


def test_the_largest_seed_is_read_exactly_from_files_and_flags(tmp_path):
    toml, saved = tmp_path / "mine.toml", tmp_path / "mine.json"
    toml.write_text(f"seed = {MAX_SEED}")
    saved.write_text(json.dumps({"seed": MAX_SEED}))
    for path in (toml, saved):
        assert resolve("plain", path).seed == MAX_SEED
    assert read_train_ppo(["--seed", str(MAX_SEED)]).training.seed == MAX_SEED


def test_a_run_of_the_largest_seed_resumes_with_it(tmp_path):
    config = replace(small_run(1), seed=MAX_SEED)
    with RunFolder.create(tmp_path, "x", config) as folder:
        train_ppo_vectorized(config, run_dir=folder, spec=SPEC)
    path = folder.path
    assert read_config(path).seed == read_info(path).seed == MAX_SEED
    assert newest(path).engine["seed"] == newest(path).load_agent().seed == MAX_SEED
    resumed = resumed_run(path, replace(config, rounds=2))
    assert resumed.trainer.engine.config.seed == MAX_SEED
    assert len(resumed.trainer.history) == 2


def test_events_keep_it_in_both_formats(tmp_path):
    flags = ("--task", "synthetic", "--envs", "1", "--episode-length", "1", "--batches-per-step",
             "1", "--batch-size", "8", "--device", "cpu", "--quiet")  # fmt: skip
    where = ("--out", str(tmp_path), "--telemetry-dir", str(tmp_path))
    assert train.main(["wait", *flags, "--seed", str(MAX_SEED), *where]) == 0
    started, *_ = read_jsonl(tmp_path / "events.jsonl")
    assert started.payload.seed == MAX_SEED
    table = read_parquet(tmp_path, TelemetryEventType.RUN_STARTED)
    assert table["seed"].to_pylist() == [MAX_SEED]
    assert json.loads((tmp_path / "train_wait_synthetic.json").read_text())["settings"]["seed"] == (
        MAX_SEED
    )
