"""Tuning gives every population the same choices and names the best one."""

import json
from pathlib import Path

import pytest

from esper.scripts.door import enter
from esper.scripts.tune_digits import TuneDigits, tune_digits

SMALL = (
    "--repeats 1 --schedules cosine --run.members 1 --run.steps 11 --run.batches 2 "
    "--run.batch-size 16 --run.host-steps 2 --run.incubate-steps 3 --run.probation-steps 3 "
    "--run.prune-steps 0"
)


def test_every_choice_is_tried_and_the_best_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "tune.json"
    flags = [*SMALL.split(), "--arms", "ALONE", "FULL", "--rates", "1e-9", "0.1"]
    assert enter(TuneDigits, tune_digits, [*flags, "--out", str(path)]) == 0
    out = capsys.readouterr().out
    scores = json.loads(path.read_text())
    assert set(scores) == {"alone", "full"}
    for arm, choices in scores.items():
        assert set(choices) == {"1e-09 cosine", "0.1 cosine"}
        best = max(choices, key=lambda name: sum(choices[name]))
        assert f"{arm}: best is {best}" in out
