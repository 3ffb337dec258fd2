"""Mixed precision: bfloat16 in training batches only, so what is judged is what is returned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import esper
from esper.growing.settings import GrowSettings
from esper.growing.trainers.task import Task
from grow_support import read_parts, runs_of
from support import refused

BUDGET = esper.Budget(host_runs=1)


def data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((240, 1, 6, 6)).astype(np.float32)
    return x, (x.mean((1, 2, 3)) > 0).astype(np.int64)


def small_cnn() -> nn.Module:
    """With batch norm, whose running statistics stay in float32."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2),
    )  # fmt: skip


def grow(folder: Path, model: Any = small_cnn, **settings: Any) -> esper.GrowResult:
    chosen = {"budget": BUDGET, "epochs": 2, "widths": (), "device": "cpu"} | settings
    return esper.grow(model, data(), folder=folder, verbose=False, **chosen)


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> esper.GrowResult:
    return grow(tmp_path_factory.mktemp("amp"), amp=True)


def test_training_batches_are_in_bfloat16_and_validation_is_not(tmp_path, monkeypatch):
    seen: dict[str, set[bool]] = {"train": set(), "val": set()}
    outputs = Task.outputs

    def watched(self: Task, network: nn.Module, values: list[Tensor]) -> Tensor:
        part = "train" if network.training else "val"
        seen[part].add(torch.is_autocast_enabled("cpu"))
        return outputs(self, network, values)

    monkeypatch.setattr(Task, "outputs", watched)
    grow(tmp_path, amp=True, epochs=1)
    assert seen == {"train": {True}, "val": {False}}


def test_the_plain_network_has_the_validation_score_of_its_run(result):
    val = read_parts(data(), seed=0).val
    for network in result.frontier:
        with torch.no_grad():
            right = (network.model(val.inputs).argmax(1) == val.targets).float().mean()
        assert float(right) == pytest.approx(network.val_score, abs=1e-6)


def test_the_same_seed_is_the_same_search_bit_for_bit(result, tmp_path):
    again = grow(tmp_path, amp=True)
    assert runs_of(again.folder) == runs_of(result.folder)


def test_the_run_says_what_it_was_trained_in_and_is_resumed_in_it(result):
    assert result.info.amp
    assert {row.how.precision for row in runs_of(result.folder)} == {"bfloat16"}
    text = refused(lambda: grow(result.folder.parent, resume=result.folder))
    assert "other amp (True, now auto)" in text


class Turned(nn.Module):
    """torch has no complex numbers of bfloat16 parts."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.complex(x, x).real


def test_an_operation_without_bfloat16_is_one_line(tmp_path):
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(36, 4), Turned(), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(),
        nn.Linear(4, 2),
    )  # fmt: skip
    text = refused(lambda: grow(tmp_path, model, amp=True))
    assert text.startswith("amp=True: Sequential does not train in bfloat16 (")
    assert text.endswith("); use amp=False")
    assert "\n" not in text


def test_what_the_users_code_raises_is_not_taken_for_that(tmp_path):
    def offline(_):
        raise RuntimeError("my tracker is offline")

    with pytest.raises(RuntimeError, match="my tracker is offline"):
        grow(tmp_path, amp=True, on_round=offline)


@pytest.mark.parametrize("amp", ["bf16", 1, None])
def test_what_is_no_choice_is_one_line(amp):
    assert "give True, False, or 'auto'" in refused(lambda: GrowSettings(amp=amp))


def test_auto_is_float32_on_a_cpu(tmp_path):
    found = grow(tmp_path, amp="auto", epochs=1)
    assert not found.info.amp
    assert {row.how.precision for row in runs_of(found.folder)} == {"float32"}
