"""docs/data.md and docs/own-data.md: the code of the first runs, and claims of both hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_support import random_policy
from esper.tasks.objectives import choose_loss
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.engine_config import EngineConfig

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names the page defines, after all its blocks have run in order."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, Any] = {"__name__": "data_page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    return names


def test_parts_are_cut_as_promised(page):
    data = page["data"]
    assert (len(data.train), len(data.val), len(data.test)) == (300, 100, 100)


def test_objectives_are_as_promised(page):
    assert (page["classes"].name, page["classes"].metric) == ("cross_entropy", "accuracy")
    assert (page["quantile"].name, page["quantile"].metric) == ("pinball", "explained")


def test_the_task_trains_as_promised(page):
    engine = VectorizedEngine(page["task"], EngineConfig(members=2, device="cpu"))
    score_E = engine.run_rollout(random_policy(0, page["task"])).outcome.score_E
    assert ((score_E >= 0) & (score_E <= 1)).all()


@pytest.mark.parametrize(
    ("targets", "output_shape", "loss"),
    [
        (torch.arange(9), (9,), "cross_entropy"),
        (torch.arange(24).view(2, 3, 4), (30, 3, 4), "cross_entropy"),
        (torch.arange(6).view(2, 3), (3, 9), "language"),
        (torch.arange(2), (1,), "binary"),
        (torch.tensor([[0, 1], [1, 1]]), (2,), "multilabel"),
        (torch.rand(4, 2), (2,), "mse"),
    ],
)
def test_the_table_of_losses_is_what_auto_chooses(targets, output_shape, loss):
    assert choose_loss(targets, output_shape) == loss
