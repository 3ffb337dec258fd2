"""`esper.grow` on a GPU: captured batches train as eager ones, for every kind of layer it meets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import esper
from cuda_support import NEEDS_CUDA
from esper.growing import training

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


def test_captured_batches_train_as_eager_ones(tmp_path, monkeypatch):
    captured, made = [], training.make_graph_cache

    def watched(*args):
        graphs, reason = made(*args)
        captured.append((graphs, reason))
        return graphs, reason

    monkeypatch.setattr(training, "make_graph_cache", watched)
    replayed = grow(tmp_path / "replayed")
    assert [reason for graphs, reason in captured if graphs is None] == []
    assert [graphs.problem for graphs, _ in captured if graphs.problem is not None] == []
    assert sum(graphs.replays for graphs, _ in captured) > 100
    monkeypatch.setattr(training, "make_graph_cache", lambda *_: (None, "for the test"))
    eager = grow(tmp_path / "eager")
    # The model itself; other candidates depend on rankings, which rounding may change.
    one, other = (result.host for result in (replayed, eager))
    assert one.val_score == pytest.approx(other.val_score, abs=0.02)
    a, b = one.model.state_dict(), other.model.state_dict()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=1e-3)


def test_a_width_that_torch_cannot_vmap_is_looped(tmp_path):
    """A batch norm of one channel."""
    result = esper.grow(
        model, data(), budget=esper.Budget(host_runs=3), epochs=4, device="cuda",
        folder=tmp_path, verbose=False, widths=(0.25,), lr=3e-3,
    )  # fmt: skip
    assert result.info.variants == ("", "x0.25")
