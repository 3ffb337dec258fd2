"""Long commands print something at least every two seconds, from the first to the last.

Minutes; a slice runs by default (tests/karn/test_heartbeat.py has the rest).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from silence_support import speaks

SMALL = ["--task", "synthetic", "--episode-length", "6", "--batches-per-step", "1",
         "--batch-size", "16", "--device", "cpu"]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("silence")


def test_train_and_eval_are_never_silent(place):
    speaks(["train", "ppo", *SMALL, "--envs", "2", "--rounds", "2"], place)
    (run,) = (place / "runs").glob("*ppo*")
    speaks(["eval", str(run), "--envs", "2"], place)


def test_grow_and_export_are_never_silent(place):
    speaks(["grow", "--demo", "--host-runs", "1", "--epochs", "2"], place)
    (run,) = (place / "runs").glob("*grow*")
    speaks(["export", str(run), "small.onnx"], place)
    speaks(["report", str(run)], place)


def test_compare_is_never_silent(place):
    speaks(["compare", "wait", "random", *SMALL, "--seeds", "2", "--out", "compared"], place)
