"""A setting of grow is written once: signature, command line, record and docs follow from it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch

from esper.growing.api import grow
from esper.growing.settings import GrowSettings
from esper.karn.query.columns import field_docs
from esper.scripts.cli.command import read_command_line
from esper.scripts.grow import Grow

FIELDS = {field.name: field for field in dataclasses.fields(GrowSettings)}
PAGE = (Path(__file__).parents[2] / "docs" / "grow-reference.md").read_text()
SAMPLE = {
    "columns": ["a", "b"], "categorical": ["a", 2], "stream": "never", "batch_size": 7,
    "loss": "mse", "metric": "r2",
    "class_weights": [1.0, 2.0], "label_smoothing": 0.1, "augment": "flip",
    "output": 1, "slots": ["layer1"],
    "blueprints": ["norm"], "inherit": True, "widths": [0.5], "depths": [2.0],
    "epochs": 2.0,
    "train_step": "mine.py:step", "optimizer": "sgd", "scheduler": "mine.py:halving",
    "lr": [0.1, 0.2], "weight_decay": 0.3, "clip": 2.0, "amp": True,
    "refit": False,
    "seed": 5, "device": "cpu", "executor": "sharded", "on": "ray",
}  # fmt: skip
"""Another value of each setting."""


def test_the_signature_is_that_of_the_settings():
    given = inspect.signature(grow).parameters
    types = {"Tensor": torch.Tensor, "Device": torch.device, "Function": Callable[..., Any]}
    hints, wanted = get_type_hints(grow), get_type_hints(GrowSettings, localns=types)
    assert {n: given[n].default for n in FIELDS} == {n: f.default for n, f in FIELDS.items()}
    assert {name: hints[name] for name in FIELDS} == {name: wanted[name] for name in FIELDS}
    assert all(given[name].kind is inspect.Parameter.KEYWORD_ONLY for name in FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_a_setting_is_a_flag_a_line_of_the_record_and_of_the_docs(name):
    value = SAMPLE[name]
    words = [str(word) for word in (value if isinstance(value, list) else [value])]
    read = read_command_line(Grow, [f"--{name.replace('_', '-')}", *words]).settings
    assert getattr(read, name) == value
    changed = dict(GrowSettings(**{name: value}).record())
    assert dict(read.record()) == changed
    assert {n for n, text in GrowSettings().record() if changed[n] != text} == {name}
    row = f"| `{name}` | `{FIELDS[name].default!r}` | {field_docs(GrowSettings)[name]} |"
    assert row.replace("<", "&lt;") in PAGE.splitlines()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"lr": 0.01}, {"lr": [0.01]}),
        ({"widths": (1, 2)}, {"widths": [1.0, 2.0]}),
        ({"class_weights": torch.ones(2)}, {"class_weights": (1, 1)}),
        ({"lr": np.array([0.01, 0.03])}, {"lr": [0.01, 0.03]}),
        ({"widths": np.array([0.5, 2.0])}, {"widths": (0.5, 2.0)}),
        ({"lr": [np.float64(0.01)]}, {"lr": [0.01]}),
        ({"widths": (np.float64(0.5), 2)}, {"widths": (0.5, 2)}),
        ({"epochs": np.int64(5)}, {"epochs": 5}),
    ],
)
def test_the_record_is_the_same_however_a_setting_is_written(one, other):
    assert GrowSettings(**one).record() == GrowSettings(**other).record()
