"""`esper.grow` on a GPU: a search of captured runs is that of eager ones, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import esper
from cuda_support import NEEDS_CUDA
from esper.growing import outcome
from esper.growing.problem import Problem
from esper.growing.trainers.eager import EagerTrainer
from esper.tasks.measuring import Measured
from grow_support import runs_of, same_weights

pytestmark = [*NEEDS_CUDA, pytest.mark.usefixtures("exact")]


def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1),
        nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip


def data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, 320)
    x = generator.standard_normal((320, 1, 8, 8)).astype(np.float32)
    x[np.arange(320), 0, 2 * y] += 1.0
    return x, y


def grow(folder: Path) -> esper.GrowResult:
    return esper.grow(
        model, data(), budget=esper.Budget(host_runs=4), epochs=10, device="cuda", folder=folder,
        verbose=False, widths=(), lr=3e-3,
    )  # fmt: skip


def test_a_search_of_captured_runs_is_that_of_eager_ones(tmp_path, monkeypatch):
    replayed = grow(tmp_path / "replayed")
    rows = runs_of(replayed.folder)
    assert len(rows) > 2
    assert {row.how.trainer for row in rows} == {"captured"}
    assert {row.how.precision for row in rows} == {"bfloat16"}
    monkeypatch.setattr("esper.growing.trainers.choose.process_trainer", EagerTrainer)
    eager = grow(tmp_path / "eager")
    assert [row.score for row in runs_of(eager.folder)] == [row.score for row in rows]
    assert {row.how.trainer for row in runs_of(eager.folder)} == {"eager"}
    assert same_weights(replayed, eager)


def test_networks_are_judged_on_the_gpu_and_returned_on_the_cpu(tmp_path, monkeypatch):
    judged, places = outcome._judged, []

    def judge(model: nn.Module, problem: Problem, device: torch.device) -> Measured:
        places.append(device.type)
        return judged(model, problem, device)

    monkeypatch.setattr(outcome, "_judged", judge)
    x, y = (torch.as_tensor(part) for part in data())
    result = esper.grow(
        model, (x[:200], y[:200]), val=(x[200:250], y[200:250]), test=(x[250:], y[250:]),
        budget=esper.Budget(host_runs=3), epochs=10, device="cuda", folder=tmp_path / "run",
        verbose=False, widths=(), lr=3e-3,
    )  # fmt: skip
    assert set(places) == {"cuda"}
    for one in result.frontier:
        with torch.no_grad():
            right = (one.model(x[250:]).argmax(1) == y[250:]).double()
        assert one.test_score == pytest.approx(float(right.mean()))


def test_depths_and_the_refit_are_those_of_eager_runs(tmp_path, monkeypatch):
    def deep() -> nn.Module:
        blocks = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(2)]
        return nn.Sequential(nn.Flatten(), *blocks, nn.Linear(64, 3))

    def search(name: str) -> esper.GrowResult:
        return esper.grow(
            deep, data(), budget=esper.Budget(host_runs=8), epochs=6, device="cuda",
            folder=tmp_path / name, verbose=False, widths=(), depths=(2.0,), lr=3e-3, refit=True,
        )  # fmt: skip

    replayed = search("replayed")
    assert replayed.info.variants == ("", "d2")
    assert replayed.best.record.refit
    for place in ("trainers.choose", "refit"):
        monkeypatch.setattr(f"esper.growing.{place}.process_trainer", EagerTrainer)
    eager = search("eager")
    assert [row.score for row in runs_of(eager.folder)] == [
        row.score for row in runs_of(replayed.folder)
    ]
    assert same_weights(replayed, eager)


def test_a_batch_norm_of_one_channel_trains(tmp_path):
    result = esper.grow(
        model, data(), budget=esper.Budget(host_runs=3), epochs=4, device="cuda",
        folder=tmp_path, verbose=False, widths=(0.25,), lr=3e-3,
    )  # fmt: skip
    assert result.info.variants == ("", "x0.25")


def test_a_worker_for_each_gpu_trains_the_same_networks(tmp_path, monkeypatch):
    """Two workers on one GPU: what they train is what one process trains, bit for bit."""
    alone = grow(tmp_path / "alone")
    monkeypatch.setattr("esper.growing.trainers.choose.gpus", lambda _: ("cuda:0", "cuda:0"))
    shared = grow(tmp_path / "shared")
    rows = runs_of(shared.folder)
    assert {row.how.device for row in rows} == {"cuda:0"}
    assert {row.how.trainer for row in rows} == {"captured"}
    assert [row.score for row in rows] == [row.score for row in runs_of(alone.folder)]
    assert same_weights(alone, shared)
