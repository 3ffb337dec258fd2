"""docs/sklearn.md: its code runs as written, and it names every parameter."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import esper.sklearn
from esper.sklearn import GrowingClassifier, GrowingRegressor

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "sklearn.md"
TEXT = PAGE.read_text()


def test_the_code_runs_as_written(tmp_path, monkeypatch):
    hardly_any_training = {"TINY": 10**6, "TINY_RUNS": 1.0, "EPOCHS": (1, 1)}
    for name, value in hardly_any_training.items():
        monkeypatch.setattr(esper.sklearn, name, value)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    assert isinstance(names["classifier"], GrowingClassifier)
    assert (tmp_path / "small.pt2").exists()


@pytest.mark.parametrize("kind", [GrowingClassifier, GrowingRegressor])
def test_every_parameter_and_default_is_on_the_page(kind):
    for name, parameter in inspect.signature(kind).parameters.items():
        default = str(parameter.default)
        row = re.search(rf"^\| `{name}` \| `\"?{re.escape(default)}\"?` \|", TEXT, re.MULTILINE)
        assert row, f"{name}={default}"
