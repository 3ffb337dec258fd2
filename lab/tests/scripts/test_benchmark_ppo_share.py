"""The PPO share benchmark: parts add up to the round of the real trainer."""

from __future__ import annotations

import json

import pytest
import torch

from benchmark_ppo_share import (
    BenchmarkShare,
    benchmark,
    make_timed_trainer,
    time_round,
)
from esper.leyline.payloads import StepPhase
from esper.scripts.cli.command import run_command

SMALL = {"task": "synthetic", "envs": 2, "episode_length": 3, "device": "cpu"}


@pytest.fixture(autouse=True)
def threads():
    kept = torch.get_num_threads()
    yield
    torch.set_num_threads(kept)


def test_parts_of_a_round_add_up_to_what_the_clock_says():
    trainer = make_timed_trainer(BenchmarkShare(**SMALL, rounds=1))
    first, second = time_round(trainer), time_round(trainer)
    assert [record.round_index for record in trainer.history] == [0, 1], "one round each"
    for spent, record in zip((first, second), trainer.history, strict=True):
        assert spent.update == record.update_seconds
        assert spent.total >= record.rollout_seconds + record.update_seconds
        assert 0 < spent.learner_share < 1
    spent = trainer.engine.phase_seconds
    acted = spent[StepPhase.ACT] + spent[StepPhase.STORE]
    assert first.act + second.act == pytest.approx(acted)


def test_it_prints_shares_and_writes_the_numbers(tmp_path, capsys):
    out = tmp_path / "deep" / "share.json"
    benchmark(BenchmarkShare(**SMALL, rounds=2, out=out))
    record = json.loads(out.read_text())
    assert len(record["rounds"]) == len(record["learner_share"]) == 2
    first = record["rounds"][0]
    share = (first["act"] + first["update"]) / sum(first.values())
    assert record["learner_share"][0] == pytest.approx(share)
    said = capsys.readouterr().out
    assert "act + update" in said
    assert "n=2 rounds" in said


@pytest.mark.parametrize("flag", ["--envs", "--rounds", "--threads"])
def test_sizes_that_cannot_be_timed_are_refused(flag, capsys):
    assert run_command(BenchmarkShare, benchmark, [flag, "0"]) == 2
    assert f"{flag} 0: must be 1 or more" in capsys.readouterr().err
