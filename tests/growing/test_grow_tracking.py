"""`on_round` and trackers of `esper.grow`: what they get, and that the search is the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

import esper
from grow_support import runs_of
from support import refused
from tracker_support import fake_wandb


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((120, 6)).astype(np.float32)
    return x, (x[:, 0] * x[:, 1] > 0).astype(np.int64)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2))


def grow(folder: Path, **settings) -> esper.GrowResult:
    return esper.grow(
        model, data(), budget=esper.Budget(host_runs=6), epochs=4, widths=(0.5,), folder=folder,
        verbose=False, device="cpu", **settings,
    )  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> esper.GrowResult:
    return grow(tmp_path_factory.mktemp("plain"))


def same_networks(one: Path, two: Path) -> bool:
    files = sorted(path.relative_to(one) for path in one.glob("networks/*.safetensors"))
    return bool(files) and all((one / f).read_bytes() == (two / f).read_bytes() for f in files)


@pytest.mark.parametrize("fails", ["", pytest.param("log", marks=pytest.mark.slow)])
def test_networks_are_the_same_with_a_tracker_and_it_gets_what_on_round_gets(
    tmp_path, plain, monkeypatch, fails
):
    library, seen = fake_wandb(monkeypatch, fails, after=1), []
    result = grow(tmp_path, track=["wandb"], on_round=seen.append)
    assert runs_of(result.folder) == runs_of(plain.folder)
    assert same_networks(result.folder, plain.folder)
    assert [progress.round for progress in seen] == list(range(len(seen)))
    assert len(seen) > 3
    (rows,) = library.rows.values()
    sent = seen[:1] if fails else seen
    known = [{k: v for k, v in one.figures().items() if v == v} for one in sent]
    assert rows == [(one.round, row) for one, row in zip(sent, known, strict=True)]


def test_what_on_round_raises_ends_the_search_which_resumes_without_loss(
    tmp_path, plain, monkeypatch
):
    library, seen = fake_wandb(monkeypatch), []

    def on_round(progress) -> None:
        seen.append(progress.round)
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        grow(tmp_path, on_round=on_round, track=["wandb"])
    (folder,) = tmp_path.iterdir()
    result = grow(
        tmp_path,
        resume=folder,
        track=["wandb"],
        on_round=lambda progress: seen.append(progress.round),
    )
    assert runs_of(result.folder) == runs_of(plain.folder)
    assert seen == library.steps == list(range(len(seen)))


def test_a_missing_tracker_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr("esper.nissa.trackers.names.find_spec", lambda module: None)
    assert ".[mlflow]" in refused(lambda: grow(tmp_path, track=["mlflow"]))
    assert not list(tmp_path.iterdir())
