"""Searches of `esper.grow` that are over in a moment: no probe, no exported files, no report."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import esper
from esper.growing.api import prepare_run
from esper.growing.folder import GrowFolder
from esper.growing.problem import Model
from esper.growing.progress import ProgressPrinter
from esper.growing.settings import GrowSettings


def quick_search(
    folder: Path, model: Model, parts: Sequence[Any], budget: esper.Budget, **settings: Any
) -> esper.GrowResult:
    """`parts`: train, val and test."""
    chosen = GrowSettings(device="cpu", **settings)
    run = prepare_run(model, *parts, budget, chosen, ProgressPrinter(verbose=False), probe=False)
    with contextlib.closing(GrowFolder.create(folder, "quick", 0)) as home:
        return run.search(home, resumed=False, files=False)
