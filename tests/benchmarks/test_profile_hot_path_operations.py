"""All documented operations are timed, interleaved, on an engine with seeds."""

import json
from pathlib import Path

import numpy as np
import pytest

from esper.scripts.cli.command import run_command
from operation_timing import Timed, take_turns
from profile_hot_path_operations import ProfileOperations, measure

FLAGS = [
    "--task",
    "synthetic",
    "--device",
    "cpu",
    "--batch-size",
    "4",
    "--batches-per-step",
    "2",
    "--val-images",
    "10",
    "--envs",
    "2",
    "--pairs",
    "2",
    "--repeats",
    "1",
    "--top",
    "3",
]


def call(*flags: str) -> int:
    return run_command(ProfileOperations, measure, flags)


def test_small_profile_prints_and_writes_every_operation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "operations.json"
    assert call(*FLAGS, "--out", str(path)) == 0
    printed = capsys.readouterr().out
    record = json.loads(path.read_text())
    names = [one["name"] for one in record["operations"]]
    parts = ("forward", "loss and backward", "clip and update")
    assert names == [
        "batch: gather, normalise",
        "batch: gather, normalise, crop and flip",
        *(f"train batch, {x}: {part}" for x in ("vmap", "loop") for part in parts),
        "validation, 2 main rows",
        "validation, all 4 rows, fused",
        "plan_coalitions",
        "attribute",
        "slot_reports",
        "legal_ops and build_masks",
        "observe",
        "execute_actions, everyone waits",
        "transfer, one stacked",
        "transfer, one for each of 14 tensors",
    ]
    for one in record["operations"]:
        assert 0 < one["lower_us"] <= one["median_us"] <= one["upper_us"]
        assert one["name"] in printed
    heavy = record["train_batch"]
    assert len(heavy) == 3
    assert heavy == sorted(heavy, key=lambda op: -op["self_us"])
    assert 0 < sum(op["share"] for op in heavy) <= 1
    (writing,) = record["batch_writing"]  # on a CPU nothing is streamed
    assert writing["placement"] == "device"
    assert min(writing["isolated_us"], writing["write_us"], writing["train_us"]) > 0
    assert 0 < writing["share"] < 1
    assert "written, data placement device" in printed


def test_operations_take_turns_and_the_first_is_left_out():
    calls: list[str] = []

    def operation(name: str, *seconds: float):
        left = iter(seconds)

        def run() -> tuple[float, ...]:
            calls.append(name)
            value = next(left)
            return value, 10 * value

        return run

    timed = [
        Timed(operation("a", 99.0, 1.0, 2.0, 3.0), ("a1", "a2"), "step"),
        Timed(operation("b", 99.0, 4.0, 4.0, 4.0), ("b1", "b2"), "step"),
    ]
    found = take_turns(timed, rounds=3, repeats=1)
    assert calls == ["a", "b"] * 4
    assert [one.name for one in found] == ["a1", "a2", "b1", "b2"]
    assert np.allclose([one.median_us for one in found], [2e6, 2e7, 4e6, 4e7])
    assert (found[0].lower_us, found[0].upper_us) == pytest.approx((1.5e6, 2.5e6))


@pytest.mark.parametrize("flags", [["--envs", "0"], ["--top", "0"], ["--blueprint", "conv_lite"]])
def test_bad_input_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
):
    assert call(*FLAGS, *flags, "--out", str(tmp_path / "operations.json")) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert flags[0].removeprefix("--") in printed.err
    assert (len(printed.err.splitlines()), printed.out) == (1, "")
