"""Weight decay, clipping and lengths reach training; wrong settings are one line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import esper
import esper.growing.run as room
from esper.growing import recipes
from esper.growing.recipes import LONGER, TIMED_EPOCHS, WEIGHT_DECAY, Length, longest_run
from esper.growing.settings import GrowSettings
from esper.karn.views.search_notes import settings_rows
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
    line = dict(settings_rows(results[20.0].folder))["optimizer"]
    assert line.endswith(", weight decay 20, gradients clipped at 1")


def test_a_run_is_resumed_with_its_own(results):
    folder = results[20.0].folder
    text = refused(lambda: grow(folder.parent, resume=folder))
    assert "other weight_decay (20, now auto)" in text


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), "much", True, None])
def test_what_is_no_weight_decay_is_one_line(wrong):
    text = refused(lambda: GrowSettings(weight_decay=wrong))
    assert text.startswith("weight_decay=")
    assert text.endswith("number of 0 or more, or 'auto'")


def test_clipped_gradients_move_weights_no_further(tmp_path):
    sgd = {"optimizer": "sgd", "weight_decay": 0.0, "epochs": 2, "lr": 1.0}
    free, clipped = (grow(tmp_path, clip=clip, **sgd) for clip in (None, 1e-12))
    largest = [
        max(float(p.detach().abs().max()) for p in found.host.model.parameters())
        for found in (free, clipped)
    ]
    assert largest[1] <= 0.5 < largest[0]  # of torch's initial weights, by 4 inputs
    assert dict(settings_rows(free.folder))["optimizer"].endswith(", gradients not clipped")
    line = refused(lambda: grow(tmp_path, resume=free.folder, **sgd))
    assert "other clip (None, now 1)" in line


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"clip": 0.0}, "clip=0.0: give the maximum gradient norm, a number above 0, or None"),
        ({"clip": float("inf")}, "clip=inf: give the maximum"),
        ({"clip": "auto"}, "clip='auto': give the maximum"),
        ({"epochs": float("inf")}, "epochs=inf: give a finite number above 0, or 'auto'"),
        ({"epochs": 1e300}, "epochs=1e+300: 6e+300 batches; give fewer"),
        ({"inherit": "yes"}, "inherit='yes': give True or False"),
        ({"blueprints": ()}, "blueprints=(): give names, as in ['norm'], or None for all that fit"),
        ({"blueprints": "norm"}, "blueprints='norm': give names, as in ['norm']"),
        (
            {"sources": ["gone.py"]},
            "sources: cannot read 'gone.py' (No such file or directory); na",
        ),
        ({"sources": [Path("/")]}, "sources: cannot read '/' (Is a directory); name files that ex"),
        ({"sources": "mine.py"}, "sources='mine.py': give a list of files, as in ['model.py']"),
        ({"sources": [3]}, "sources: 3 is no path; give files, as in ['model.py']"),
    ],
)
def test_settings_that_will_not_do_are_one_line(tmp_path, wrong, words):
    with pytest.raises(esper.EsperError) as error:
        grow(tmp_path, **wrong)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


# ---- how long a run may take ---------------------------------------------------------------------


class StopError(Exception):
    """What is asked is known, so nothing is trained."""


def longest_allowed(folder: Path, **settings: Any) -> int:
    """Batches of the longest run that a search with such settings would make."""
    asked: list[int] = []

    def ladder(given: Any, _: Any) -> None:
        asked.append(given.longer)
        raise StopError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "Ladder", ladder)
        with pytest.raises(StopError):
            grow(folder, **settings)
    return asked[0]


def test_under_a_time_limit_large_data_may_be_seen_300_times(tmp_path, monkeypatch):
    monkeypatch.setattr(recipes, "RUN_BATCHES", 1)  # as of large data, whose full run is 4 epochs
    minutes = esper.Budget(minutes=1.0)
    epoch = longest_allowed(tmp_path, epochs=1)
    assert longest_allowed(tmp_path, epochs="auto") == 4 * LONGER * epoch
    assert longest_allowed(tmp_path, epochs="auto", budget=minutes) == TIMED_EPOCHS * epoch
    assert longest_allowed(tmp_path, epochs=2, budget=minutes) == 2 * epoch, "as the user said"


@pytest.mark.parametrize(
    ("epochs", "longest"), [(4.0, 300 * 10), (80.0, 9 * 80 * 10), (math.nan, 9 * 40)]
)
def test_under_a_time_limit_no_run_has_to_be_shorter_than_without(epochs, longest):
    """Ten batches an epoch; of a stream whose length is not known, 40 in a full run."""
    length = Length(epochs, 40 if math.isnan(epochs) else round(10 * epochs))
    assert longest_run(length, "auto", timed=True) == longest
    assert longest_run(length, "auto", timed=False) == 9 * length.batches
