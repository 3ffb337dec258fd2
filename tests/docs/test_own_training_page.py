"""The examples of docs/own-training.md run as they are, with a smaller budget."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import esper

PAGE = (Path(__file__).parents[2] / "docs" / "own-training.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def run(code: str, monkeypatch: pytest.MonkeyPatch, folder: Path, **names: Any) -> esper.GrowResult:
    small = partial(esper.Budget, host_runs=2)
    monkeypatch.setattr(esper, "Budget", lambda minutes: small())
    grow = partial(
        esper.grow, epochs=2, widths=(), depths=(), device="cpu", folder=folder, verbose=False
    )
    monkeypatch.setattr(esper, "grow", grow)
    exec(code, names)
    result = names["result"]
    assert isinstance(result, esper.GrowResult)
    return result


def test_a_lightning_module_is_grown_by_its_own_training(monkeypatch, tmp_path):
    pytest.importorskip("lightning", reason="needs lightning: pip install lightning")
    torch.manual_seed(0)
    x = torch.randn(90, 8)
    result = run(BLOCKS[0], monkeypatch, tmp_path, x=x, y=x[:, :3].argmax(1))
    assert {row.recipe.optimizer for row in result.table().rows} == {"own"}


def test_a_hugging_face_model_is_grown_by_its_own_training(monkeypatch, tmp_path):
    pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (60, 6))
    given = {"ids": ids, "mask": torch.ones_like(ids), "labels": ids[:, 0] % 3}
    result = run(BLOCKS[1], monkeypatch, tmp_path, **given)
    assert {row.recipe.optimizer for row in result.table().rows} == {"own"}
    assert result.host.model(input_ids=ids[:2], attention_mask=given["mask"][:2]) is not None
