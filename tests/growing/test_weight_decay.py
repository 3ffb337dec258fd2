"""Weight decay of `esper.grow`: it reaches training and is recorded; a resume keeps it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import esper
from esper.growing.settings_text import settings_of
from esper.growing.setup import WEIGHT_DECAY, choose_weight_decay
from support import refused


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))


def grow(folder: Path, **settings: Any) -> esper.GrowResult:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((120, 6)).astype(np.float32)
    data = x, (x.sum(axis=1) > 0).astype(np.int64)
    chosen = {"budget": esper.Budget(host_runs=1), "epochs": 6, "lr": 0.01, "widths": ()} | settings
    return esper.grow(mlp, data, folder=folder, device="cpu", verbose=False, **chosen)


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[float | str, esper.GrowResult]:
    decays: tuple[float | str, ...] = ("auto", 20.0)
    return {decay: grow(tmp_path_factory.mktemp("decay"), weight_decay=decay) for decay in decays}


def test_more_of_it_leaves_smaller_weights(results):
    sums = {
        decay: sum(float(p.detach().abs().sum()) for p in result.host.model.parameters())
        for decay, result in results.items()
    }
    assert sums[20.0] < 0.8 * sums["auto"]


def test_the_run_says_what_it_was(results):
    assert results["auto"].info.weight_decay == WEIGHT_DECAY["adamw"]
    assert dict(settings_of(results[20.0].info))["optimizer"].endswith(", weight decay 20")


def test_a_run_is_resumed_with_its_own(results):
    folder = results[20.0].folder
    text = refused(lambda: grow(folder.parent, resume=folder))
    assert "other weight decay (20.0, now 0.01)" in text


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), "much", True, None])
def test_what_is_no_weight_decay_is_one_line(wrong):
    text = refused(lambda: choose_weight_decay(wrong, "adamw"))
    assert text.startswith("weight_decay=")
    assert text.endswith("number of 0 or more, or 'auto'")
