"""A limit on the time of a network for one sample."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import esper
from esper.growing.folder import read_table
from esper.growing.latency import Latency, measure_latency
from esper.growing.result import GrowResult
from esper.kasmina.tracing import Inputs
from support import refused

X = np.random.default_rng(0).standard_normal((120, 6)).astype(np.float32)
DATA = X, (X.sum(axis=1) > 0).astype(np.int64)


class Slow(nn.Module):
    """Takes a tenth of a millisecond for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))


def per_channel(model: nn.Module, *_: Any) -> Latency:
    """By the width of the first layer, so that nothing depends on the machine."""
    layer = next(part for part in model.modules() if isinstance(part, nn.Linear))
    return Latency(0.1 * layer.out_features, 0.09 * layer.out_features, 0.11 * layer.out_features)


def grow(folder: Path, **settings: Any) -> GrowResult:
    chosen = {"budget": esper.Budget(host_runs=12, latency_ms=1.25), "epochs": 4} | settings
    return esper.grow(Slow, DATA, folder=folder, device="cpu", verbose=False, blueprints=["mlp"],
                      **chosen)  # fmt: skip


@pytest.fixture
def by_width(monkeypatch):
    monkeypatch.setattr("esper.growing.networks.measure_latency", per_channel)


def test_no_network_above_it_is_trained_and_the_widest_below_it_is(tmp_path, by_width):
    result = grow(tmp_path)
    rows = read_table(result.folder).rows
    assert max(row.latency for row in rows) == pytest.approx(1.2)
    assert all(row.latency <= 1.25 for row in rows)
    best = result.best.record
    assert (best.latency_low, best.latency_high) == pytest.approx(
        (0.9 * best.latency, 1.1 * best.latency)
    )
    assert "ms a sample" in str(result)
    assert GrowResult.load(result.folder).best.record == best


def test_a_model_above_it_is_the_reference_and_narrower_ones_are_searched(tmp_path, by_width):
    result = grow(tmp_path, budget=esper.Budget(host_runs=6, latency_ms=0.55))
    assert result.best.record.latency <= 0.55
    assert not result.info.host_fits
    assert result.info.host_latency == pytest.approx(0.8)
    text = refused(lambda: grow(tmp_path, budget=esper.Budget(latency_ms=0.01)))
    assert "budget latency_ms=0.01: your model has 0.8, and the smallest network" in text


def test_named_widths_above_it_are_refused(tmp_path, by_width):
    text = refused(lambda: grow(tmp_path, widths=(2.0,)))
    assert "width 2: budget latency_ms=1.25: it has 1.6" in text


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_it_is_the_time_of_one_sample_by_the_clock(runtime):
    if runtime == "onnx":
        pytest.importorskip("onnxruntime", reason="onnxruntime comes with the export extra")
    wide = nn.Sequential(nn.Linear(6, 1200), nn.Linear(1200, 1200), nn.Linear(1200, 2)).train()
    small = nn.Linear(6, 2)
    inputs, threads = Inputs.of(wide, torch.tensor(X[:2])), torch.get_num_threads()
    large, less = (
        measure_latency(model, inputs, [torch.tensor(X)], runtime, 1)  # type: ignore[arg-type]
        for model in (wide, small)
    )
    assert 0 < less.low <= less.median <= less.high
    assert large.median > less.median
    assert wide.training
    assert torch.get_num_threads() == threads


def test_a_network_that_sleeps_takes_as_long():
    class Sleeping(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert len(x) == 1
            assert not self.training
            time.sleep(0.01)
            return x

    found = measure_latency(
        Sleeping(), Inputs.of(nn.Identity(), torch.tensor(X[:2])), [torch.tensor(X)], "torch", 1
    )
    assert 10.0 <= found.median < 40.0


@pytest.mark.parametrize("wrong", [
    {"latency_ms": 0}, {"latency_ms": math.nan}, {"latency_threads": 1.5},
    {"latency_threads": 0}, {"latency_runtime": "tvm"},
])  # fmt: skip
def test_what_is_no_limit_is_one_line(wrong):
    assert next(iter(wrong)) in refused(lambda: esper.Budget(**wrong))
