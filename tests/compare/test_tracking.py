"""`on_round` and trackers of `esper compare`: every policy that ran, once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from esper.compare import Compare, compare_policies
from esper.compare.comparison import METRICS, PolicyDone
from esper.leyline import statistics
from esper.simic.training.config import TaskConfig
from support import refused
from tracker_support import fake_wandb

TASK = TaskConfig("synthetic", episode_length=4, batches_per_step=1, batch_size=16)
TINY = Compare(("wait", "static-full:norm"), TASK, seeds=2, device="cpu", quiet=True)
LABEL = "static-full:norm"


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 200)


def settings(out: Path) -> Compare:
    return replace(TINY, out=out, track=("wandb",))


def test_every_policy_is_reported_with_the_means_of_the_comparison(tmp_path, monkeypatch):
    library, seen = fake_wandb(monkeypatch), list[PolicyDone]()
    found = compare_policies(settings(tmp_path), on_round=seen.append)
    assert [(one.label, one.round, one.done, one.policies) for one in seen] == [
        ("wait", 0, 1, 2),
        (LABEL, 1, 2, 2),
    ]
    (rows,) = library.rows.values()
    for one, (step, row) in zip(seen, rows, strict=True):
        assert step == one.round
        for metric in METRICS:
            mean = found[one.label].standing(metric.name).mean.value
            assert mean == one.means[metric.name] == row[f"{metric.name}/{one.label}"]


def test_what_on_round_raises_ends_the_comparison_which_resumes_from_there(tmp_path, monkeypatch):
    library, seen = fake_wandb(monkeypatch), []

    def on_round(done: PolicyDone) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        compare_policies(settings(tmp_path), on_round=on_round)
    compare_policies(settings(tmp_path), on_round=lambda done: seen.append(done.label))
    assert seen == [LABEL]
    assert library.steps == [0, 1]


def test_labels_become_names_that_every_tracker_takes():
    done = PolicyDone("../a=b,c/d e", "wait", 0, 1, 1, 1, 0.0, {"score": 1.0})
    assert done.figures() == {"score/a-b-c-d-e": 1.0}


def test_a_missing_tracker_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr("esper.nissa.trackers.names.find_spec", lambda module: None)
    says = refused(lambda: compare_policies(settings(tmp_path / "out")))
    assert says.startswith("--track wandb: wandb not installed")
    assert not (tmp_path / "out").exists()
