"""lab/scripts/dual_ab.py: table, plot and numbers."""

from __future__ import annotations

import json
import os

import pytest
from matplotlib.image import imread

from dual_ab import DualAb, compare
from esper.scripts.cli.command import run_command

SMALL = (
    "--task", "synthetic", "--episode-length", "3", "--batches-per-step", "1", "--envs", "2",
    "--rounds", "1", "--evaluation-envs", "2", "--device", "cpu",
)  # fmt: skip


def call(*flags: object) -> int:
    return run_command(DualAb, compare, [str(flag) for flag in flags])


def test_scores_are_shown_with_their_difference_and_never_the_pay(tmp_path, capsys):
    assert call(*SMALL, "--a", "score", "--b", "shaped", "--repeats", 2, "--out", tmp_path) == 0
    said = capsys.readouterr().out
    assert "training 2, round 1: a 0." in said
    assert "shaped minus score" in said
    assert "2 training seeds" in said
    assert "return" not in said
    record = json.loads((tmp_path / "dual_ab_synthetic_score_shaped.json").read_text())
    assert [pair["seed"] for pair in record["found"]["pairs"]] == [0, 1]
    assert record["judged"]["count"] == 2
    assert record["found"]["reward_b"]["mode"] == "shaped"
    picture = imread(tmp_path / "dual_ab_synthetic_score_shaped.png")
    assert (picture[..., :3].mean(axis=-1) < 0.9).mean() > 0.001


def test_a_reward_against_itself_is_told_apart_by_name(tmp_path, capsys):
    flags = ("--a", "basic", "--b", "basic", "--family-a", "loss", "--family-b", "loss")
    assert call(*SMALL, *flags, "--quiet", "--out", tmp_path) == 0
    said = capsys.readouterr().out
    assert "basic (loss), b" in said
    assert said.count("+0.0000 to +0.0000") == 2
    assert "round 1" not in said


def test_one_member_has_no_interval_and_exact_sums_are_asked_for(tmp_path, capsys, monkeypatch):
    """On a GPU `exact` is refused where nobody asked cuBLAS for it."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    one = ("--envs", 1, "--evaluation-envs", 1, "--quiet", "--out", tmp_path)
    assert call(*SMALL, *one) == 0
    assert "nan" not in capsys.readouterr().out
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


BAD = [
    (("--task", "synthetik"), "synthetic"),
    (("--b", "shapd"), "shapd"),
    (("--preset", "plane"), "plain"),
    (("--rounds", "0"), "--rounds 0"),
    (("--seed", "10000019"), "10000019"),
    (("--device", "cuda:9"), "cuda:9"),
]


@pytest.mark.parametrize(("flags", "word"), BAD)
def test_bad_flags_are_refused_in_one_line(flags, word, tmp_path, capsys):
    assert call(*SMALL, "--out", tmp_path, *flags) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert word in said


def test_a_folder_in_the_way_of_the_report_is_refused_before_anything_runs(tmp_path, capsys):
    name = "dual_ab_synthetic_score_shaped.json"
    (tmp_path / name).mkdir()
    assert call(*SMALL, "--out", tmp_path) == 2
    assert f"{tmp_path / name} is a folder" in capsys.readouterr().err
    assert os.listdir(tmp_path) == [name]
