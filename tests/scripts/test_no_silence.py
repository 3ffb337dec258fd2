"""Long commands print something at least every two seconds, from the first to the last.

Minutes; a slice runs by default (tests/karn/test_heartbeat.py has the rest).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from silence_support import watch_command

LONGEST = 2.0
SMALL = ["--task", "synthetic", "--episode-length", "6", "--batches-per-step", "1",
         "--batch-size", "16", "--device", "cpu"]  # fmt: skip
AUDIT = ["synthetic", "--contexts", "2", "--topologies", "3", "--hosts", "2", "--device", "cpu"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("silence")


def speaks(words: list[str], place: Path) -> None:
    found = watch_command(sys.executable, words, place)
    assert found.status == 0, found.output[-2000:]
    assert found.longest.seconds <= LONGEST, (
        f"esper {words[0]} was silent for {found.longest.seconds:.1f} s after "
        f"{found.longest.after[-200:]!r}"
    )


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


def test_audit_and_bench_are_never_silent(place):
    speaks(["audit", *AUDIT, "--out", "audited"], place)
    speaks(["bench", "digits_impaired", "--policies", "table"], place)
