"""Every combination is trained as often as configured, and ranked by score."""

from __future__ import annotations

import json

import numpy as np
import pytest

from esper.scripts.cli.command import run_command
from search_topologies import SearchTopologies, search

SMALL = ("--task", "synthetic", "--episode-length", "2", "--device", "cpu", "--profile", "exact")


def call(*flags: object) -> int:
    return run_command(SearchTopologies, search, [str(flag) for flag in flags])


def test_all_combinations_are_ranked_by_score(tmp_path, capsys):
    out = tmp_path / "found.json"
    blueprints = ("--blueprints", "norm", "conv_light", "--slots", "r0c0", "r0c2")
    assert call(*SMALL, *blueprints, "--repeats", 2, "--envs", 7, "--out", out) == 0
    found = json.loads(out.read_text())["topologies"]
    kinds = ("-", "norm", "conv_light")
    assert {f["topology"] for f in found} == {f"{a} - {b}" for a in kinds for b in kinds}
    assert all(f["members"] == 2 for f in found)
    scores = [f["score"] for f in found]
    assert scores == sorted(scores, reverse=True)
    sizes = {f["topology"]: f["params_over_host"] for f in found}
    assert sizes["- - -"] == 0
    assert sizes["conv_light - conv_light"] > sizes["conv_light - -"] > 0
    said = capsys.readouterr().out
    assert "18 of 18 members trained" in said
    assert "best that fills every slot" in said
    assert np.isfinite(scores).all()


def test_ends_fill_the_first_and_the_last_slots(tmp_path):
    out = tmp_path / "found.json"
    ends = ("--blueprints", "norm", "--shape", "ends", "--repeats", 1, "--out", out)
    assert call(*SMALL, *ends) == 0
    found = json.loads(out.read_text())["topologies"]
    n = "norm"
    wanted = {"- - -", f"- - {n}", f"- {n} {n}", f"{n} {n} {n}", f"{n} - -", f"{n} {n} -"}
    assert {f["topology"] for f in found} == wanted
    assert [f["flops_ratio"] for f in found if f["topology"] == "- - -"] == [1.0]
    assert found[0]["accuracy_error"] is None  # one member each


BAD = [
    (("--task", "synthetik"), "synthetic"),
    (("--blueprints", "conv_lite"), "conv_light"),
    (("--slots", "r7c7"), "r7c7"),
    (("--repeats", "0"), "--repeats 0"),
    (("--device", "cuda:9"), "cuda:9"),
]


@pytest.mark.parametrize(("flags", "word"), BAD)
def test_bad_flags_are_refused_in_one_line(flags, word, tmp_path, capsys):
    assert call(*SMALL, "--out", tmp_path / "x.json", *flags) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert word in said
