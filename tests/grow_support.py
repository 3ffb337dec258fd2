"""Searches of `esper.grow` that are over in a moment, and what is compared of them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import esper
from esper.growing.api import prepare_run
from esper.growing.data.reading import MEMORY_SHARE, GrowData, read_data
from esper.growing.folder import GrowFolder, read_table
from esper.growing.problem import Model
from esper.growing.progress import ProgressPrinter
from esper.growing.runs import Row
from esper.growing.settings import GrowSettings


def quick_search(
    folder: Path, model: Model, parts: Sequence[Any], budget: esper.Budget, **settings: Any
) -> esper.GrowResult:
    """`parts`: train, val and test; no exported files, no report."""
    chosen = GrowSettings(device="cpu", **settings)
    run = prepare_run(model, parts, budget, chosen, ProgressPrinter(verbose=False))
    with contextlib.closing(GrowFolder.create(folder, "quick", 0)) as home:
        return run.search(home, resumed=False, files=False)


def read_parts(
    train: Any,
    val: Any = None,
    test: Any = None,
    *,
    sample_weights: Any = None,
    memory_limit: float | None = None,
    two_inputs: bool = False,
    **settings: Any,
) -> GrowData:
    """The data of a search with these settings; `memory_limit`: bytes that a part may take."""
    with pytest.MonkeyPatch.context() as patched:
        if memory_limit is not None:
            patched.setattr(
                "esper.growing.data.reading.free_bytes", lambda _: memory_limit / MEMORY_SHARE
            )
        chosen = GrowSettings(**settings)
        return read_data(train, val, test, chosen, sample_weights, two_inputs)


def runs_of(folder: Path) -> tuple[Row, ...]:
    """The table of a search, but not the time that its runs took, nor when they ended."""
    return tuple(replace(row, seconds=0.0, at=0.0) for row in read_table(folder).rows)


def same_weights(one: esper.GrowResult, other: esper.GrowResult) -> bool:
    """Whether both picks are the same, bit for bit."""
    a, b = one.model.state_dict(), other.model.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def every_batch(monkeypatch: pytest.MonkeyPatch, saves: bool = False) -> None:
    """Trainers on a CPU look for Ctrl-C after every batch; `saves`: and write a checkpoint."""
    for trainer in ("eager", "workers"):
        monkeypatch.setattr(f"esper.growing.trainers.{trainer}.TICK_SECONDS", -1.0)
    if saves:
        monkeypatch.setattr("esper.growing.trainers.eager.CHECKPOINT_SECONDS", -1.0)
    monkeypatch.setattr("esper.growing.trainers.workers.SLICE_SECONDS", 1e-9)
