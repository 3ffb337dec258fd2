"""Lanes of the duel: equal shares, nothing twice, nothing that would not end in time."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from duel_lanes import lanes, main

SETTINGS = ["--gpu-lanes", "0", "--cpu-lanes", "2", "--cpu-seconds", "20", "--data", "nowhere"]


@pytest.fixture
def played(monkeypatch, tmp_path) -> list[dict[str, Any]]:
    """What was started, in place of contenders: (problem, contender, seed) and cores."""
    seen: list[dict[str, Any]] = []

    def run(words: list[str], env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        value = lambda name: words[words.index(name) + 1]  # noqa: E731
        seen.append({"play": (value("--problems"), value("--contenders"), int(value("--seeds"))),
                     "cores": value("--cpu-list")})  # fmt: skip
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    return seen


def test_lanes_share_the_gpu_equally_and_no_core_is_in_two_pairs():
    made = lanes(range(16), 4, 6)
    assert [lane.share for lane in made[:4]] == [25] * 4
    assert {lane.cores for lane in made[:4]} == {(0, 1, 2, 3)}
    own = [core for lane in made[4:] for core in lane.cores]
    assert sorted(own) == list(range(4, 16))
    with pytest.raises(SystemExit, match="need 16 cores; this machine has 8"):
        lanes(range(8), 4, 6)


def test_every_pair_is_played_once_and_what_is_on_disk_is_not_played_again(played, tmp_path):
    row = {"problem": "digits", "contender": "grow", "seed": 1, "device": "cpu", "seconds": 20.0}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(row) + "\n")
    main([*SETTINGS, "--problems", "digits", "--seeds", "1", "2", "--out", str(tmp_path)])
    assert sorted(one["play"] for one in played) == [
        ("digits", "grow", 2), ("digits", "optuna", 1), ("digits", "optuna", 2),
    ]  # fmt: skip
    assert {one["cores"] for one in played} <= {"0,1", "2,3"}


def test_nothing_is_started_that_would_not_end_in_time(played, tmp_path):
    main([*SETTINGS, "--seeds", "1", "--out", str(tmp_path), "--until", "30"])
    assert played == []
    main([*SETTINGS, "--seeds", "1", "--out", str(tmp_path), "--until", "36"])
    assert len(played) == 12


def test_a_lane_keeps_the_log_of_its_contenders(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    settings = ["--gpu-lanes", "0", "--cpu-lanes", "1", "--cpu-seconds", "1", "--data", "nowhere"]
    main([*settings, "--problems", "cifar", "--contenders", "one", "--seeds", "1",
          "--out", str(tmp_path), "--until", "17"])  # fmt: skip
    assert "nowhere/cifar.npz" in (tmp_path / "cpu-0.log").read_text()
