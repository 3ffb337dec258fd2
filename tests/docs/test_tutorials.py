"""docs/grow.md, docs/own-data.md and the tutorials: their code runs, and starts with six lines."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import esper
from esper.growing.api import grow
from esper.growing.data.samples import LABEL_KEYS
from esper.tasks.metrics import EXPLAINED, METRICS
from esper.tasks.objectives import LOSSES

DOCS = Path(__file__).parents[2] / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
PAGES = [DOCS / "grow.md", DOCS / "own-data.md", *TUTORIALS]
MAX_LINES = 6


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


def run_page(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names a page defines, after its blocks have run in order with hardly any training."""

    def small_grow(*args: Any, **options: Any) -> esper.GrowResult:
        budget = options.pop("budget", None) or esper.Budget()
        cut = dataclasses.replace(budget, host_runs=1.5, minutes=None)
        settings = {
            "epochs": 0.1,
            "widths": (),
            "device": "cpu",
            "verbose": False,
            "folder": folder,
        }
        return grow(*args, budget=cut, **(options | settings))

    monkeypatch.chdir(folder)
    monkeypatch.setattr(esper, "grow", small_grow, raising=False)
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), names)
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_runs_as_written(page, tmp_path, monkeypatch):
    names = run_page(page, tmp_path, monkeypatch)
    assert isinstance(names["result"], esper.GrowResult)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_starts_with_six_lines(page):
    code = [line for line in blocks(page)[0].splitlines() if line.strip()]
    imports = [line for line in code if re.match(r"(import|from) ", line)]
    assert len(code) - len(imports) <= MAX_LINES
    assert len(imports) <= 5
    assert max(map(len, code)) <= 110


def test_there_are_four_tutorials():
    names = {page.stem for page in TUTORIALS}
    assert names == {"image_classifier", "sensor_signal", "table", "text_model"}


def test_every_argument_and_limit_is_in_the_reference():
    text = (DOCS / "grow-reference.md").read_text()
    limits = [field.name for field in dataclasses.fields(esper.Budget)]
    names = [*inspect.signature(grow).parameters, *limits]
    assert not [name for name in names if f"`{name}`" not in text]


def test_every_loss_and_metric_is_on_the_page():
    text = (DOCS / "own-data.md").read_text()
    names = (*LOSSES, *METRICS, EXPLAINED, *LABEL_KEYS)
    assert not [name for name in names if f"`{name}`" not in text]
