"""Calibration finds constants under which the best topology leaves a slot empty."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from calibrate_score import CalibrateScore, _task_constants, calibrate, judge, merge
from esper.scripts.cli.command import run_command
from support import refused

KINDS = ("-", "small", "big")
GAIN = {"-": 0.0, "small": 0.04, "big": 0.07}
SIZE = {"-": 0.0, "small": 0.1, "big": 2.0}
SLOT = (1.0, 0.5)
"""What a seed brings and costs: the second slot brings half."""


def truth(topology: tuple[str, ...]) -> float:
    return 0.5 + sum(GAIN[kind] * part for kind, part in zip(topology, SLOT, strict=True))


def record(noise: float = 0.0, members: int = 4, seed: int = 0, task: str = "digits_impaired"):
    rng = np.random.default_rng(seed)
    rows = []
    for topology in itertools.product(KINDS, repeat=2):
        size = sum(SIZE[kind] for kind in topology)
        rows.append(
            {
                "topology": " ".join(topology),
                "accuracy": truth(topology) + rng.normal(0, noise / members**0.5),
                "accuracy_error": noise / members**0.5 if members > 1 else None,
                "params_over_host": size,
                "macs_over_host": size,
                "flops_ratio": 1 + size,
                "members": members,
            }
        )
    return {"task": task, "topologies": rows}


def test_without_noise_the_measured_accuracies_are_believed():
    found = merge([record()])
    for topology, accuracy in zip(found.slots_K, found.accuracy_K, strict=True):
        assert accuracy == pytest.approx(truth(topology), abs=1e-4)


@pytest.mark.parametrize(
    ("constants", "best", "full_leads"),
    [
        ((0.0, 0.0, 0.0), ("big", "-"), True),  # nothing costs: fill all
        ((0.2, 0.0, 0.0), ("small", "-"), False),  # half a gain is not worth a full price
        ((0.0, 0.2, 0.0), ("small", "-"), False),
        ((0.0, 0.0, 0.25), ("small", "-"), False),
    ],
)
def test_the_leader_under_given_constants_is_the_one_worked_out_by_hand(
    constants, best, full_leads
):
    found = merge([record()])
    verdict = judge(found, *constants)
    assert found.slots_K[verdict.best] == best
    assert (verdict.score_full > verdict.score) == full_leads
    c_p, c_m, c_f = constants
    size = sum(SIZE[kind] for kind in best)
    price = (c_p + c_m) * np.log2(1 + size) + c_f * size
    assert verdict.score == pytest.approx(truth(best) - price, abs=1e-4)
    assert verdict.score_host == pytest.approx(0.5, abs=1e-4)


def test_noisy_figures_are_drawn_towards_the_truth():
    """Over many noisy searches the errors left are smaller than those of the raw figures."""
    raw, drawn = [], []
    for seed in range(40):
        noisy = record(noise=0.03, members=2, seed=seed)
        found = merge([noisy])
        true_K = np.array([truth(slots) for slots in found.slots_K])
        measured_K = np.array([row["accuracy"] for row in noisy["topologies"]])
        raw.append(((measured_K - true_K) ** 2).mean())
        drawn.append(((found.accuracy_K - true_K) ** 2).mean())
    assert np.mean(drawn) < 0.85 * np.mean(raw)


def test_noise_is_seen_where_there_are_fewer_topologies_than_places():
    """13 topologies of 8 slots, two blueprints, nothing but noise: no fit may explain it away."""
    ends = [(kind, n) for kind in ("small", "big") for n in (1, 2, 4)]
    topologies = [("-",) * 8, ("small",) * 8, ("big",) * 8]
    topologies += [(kind,) * n + ("-",) * (8 - n) for kind, n in ends]
    topologies += [("-",) * (8 - n) + (kind,) * n for kind, n in ends[:4]]
    errors, best = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        rows = [
            {
                "topology": " ".join(topology), "accuracy": 0.5 + rng.normal(0, 0.02),
                "accuracy_error": None, "params_over_host": 0.1, "macs_over_host": 0.1,
                "flops_ratio": 1.1, "members": 1,
            }
            for topology in topologies
        ]  # fmt: skip
        found = merge([{"task": "cifar_deep", "topologies": rows}])
        errors.append(found.error)
        measured_K = np.array([row["accuracy"] for row in rows])
        best.append((found.accuracy_K.max() - 0.5) / (measured_K.max() - 0.5))
    assert 0.006 < np.mean(errors) < 0.02
    assert np.mean(best) < 0.7, "the best of many is believed in part only"


def test_files_of_one_task_are_merged_by_members():
    few, many = record(members=1), record(members=3)
    for row in many["topologies"]:
        row["accuracy"] += 0.04
    found = merge([few, many])
    assert (found.members_K == 4).all()
    assert found.accuracy_K[found.alone] == pytest.approx(0.53, abs=1e-3)


def test_the_command_shows_the_task_s_own_constants_and_better_ones(tmp_path: Path, capsys):
    path = tmp_path / "found.json"
    path.write_text(json.dumps(record()))
    assert run_command(CalibrateScore, calibrate, [str(path), "--margin", "0"]) == 0
    said = capsys.readouterr().out
    assert "9 topologies" in said
    assert "small -" in said


def bad_files(folder: Path) -> dict[str, list[Path]]:
    made = {name: folder / f"{name}.json" for name in ("text", "other", "old", "no_host", "a", "b")}
    made["text"].write_text("no JSON")
    made["other"].write_text("{}")
    old = record()
    del old["topologies"][0]["flops_ratio"]
    made["old"].write_text(json.dumps(old))
    no_host = record()
    no_host["topologies"] = no_host["topologies"][1:]
    made["no_host"].write_text(json.dumps(no_host))
    made["a"].write_text(json.dumps(record()))
    made["b"].write_text(json.dumps(record(task="mnist1d")))
    single = {name: [made[name]] for name in ("text", "other", "old", "no_host")}
    return single | {"two tasks": [made["a"], made["b"]], "missing": [folder / "nowhere.json"]}


@pytest.mark.parametrize(
    ("case", "hint"),
    [
        ("text", "cannot be read"),
        ("other", "lists no topologies"),
        ("old", "flops_ratio"),
        ("no_host", "needs the host"),
        ("two tasks", "one task"),
        ("missing", "nowhere.json"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_one_line(tmp_path: Path, capsys, case: str, hint: str):
    paths = [str(path) for path in bad_files(tmp_path)[case]]
    assert run_command(CalibrateScore, calibrate, paths) == 2
    error = capsys.readouterr().err
    assert hint in error
    assert error.count("\n") == 1


def test_a_task_file_that_records_name_is_not_run(tmp_path: Path):
    file = tmp_path / "theirs.py"
    file.write_text("raise SystemExit('it was run')")
    assert "--constants" in refused(lambda: _task_constants(str(file)))
