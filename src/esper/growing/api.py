"""`esper.grow`: one call from a model, data and a budget to the frontier of score against size."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from esper.growing.budget import Budget
from esper.growing.data.encoding import takes_two_inputs
from esper.growing.data.reading import read_data
from esper.growing.folder import RUNS, GrowFolder, read_sources
from esper.growing.problem import Model, Problem, make_problem
from esper.growing.progress import Progress, ProgressPrinter
from esper.growing.ranks import ONE_PROCESS, Ranks, ranks_of, scratch_folder
from esper.growing.result import GrowResult
from esper.growing.run import GrowRun
from esper.growing.settings import GrowSettings, StreamChoice
from esper.leyline.errors import EsperError
from esper.storage.sessions import recorded_session


def grow(
    model: Model,
    train: Any,
    val: Any = None,
    test: Any = None,
    budget: Budget | None = None,
    *,
    sample_weights: Any = None,
    columns: Sequence[str] | None = None,
    categorical: Literal["auto"] | Sequence[int | str] | None = None,
    stream: StreamChoice = "auto",
    batch_size: int | None = None,
    loss: str | Callable[..., Any] = "auto",
    metric: str | Callable[..., Any] = "auto",
    class_weights: Sequence[float] | Tensor | None = None,
    label_smoothing: float | Literal["auto"] = "auto",
    augment: str = "auto",
    output: int | str | None = None,
    slots: int | Sequence[str] = 8,
    blueprints: Sequence[str] | None = None,
    inherit: bool = False,
    widths: Sequence[float] | Literal["auto"] = "auto",
    depths: Sequence[float] | Literal["auto"] = "auto",
    epochs: float | Literal["auto"] = "auto",
    train_step: Callable[..., Any] | None = None,
    optimizer: str | Callable[..., Any] = "auto",
    scheduler: Callable[..., Any] | None = None,
    lr: float | Sequence[float] | Literal["auto"] = "auto",
    weight_decay: float | Literal["auto"] = "auto",
    clip: float | None = 1.0,
    amp: bool | Literal["auto"] = "auto",
    refit: bool | Literal["auto"] = "auto",
    seed: int = 0,
    device: str | torch.device = "auto",
    executor: str = "auto",
    on: str = "local",
    name: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    sources: Sequence[str | os.PathLike[str]] = (),
    verbose: bool = True,
    on_round: Callable[[Progress], None] | None = None,
    track: Sequence[str] = (),
) -> GrowResult:
    """Grow a model on data within a budget; returns the frontier of score against size.

    `model`: a module, whose weights all networks start from, or what builds one. Without `val` and
    `test` they are cut from `train`. Ctrl-C returns the best so far. More: docs/grow-reference.md.
    """
    given, began = locals(), time.monotonic()
    settings = GrowSettings(**{field.name: given[field.name] for field in fields(GrowSettings)})
    copied, ranks = read_sources(sources), ranks_of(executor, device)
    printer = ProgressPrinter(verbose and ranks.first, on_round, track)
    with printer.shown():
        run = prepare_run(
            model, (train, val, test), budget, settings, printer,
            sample_weights=sample_weights, ranks=ranks, began=began,
        )  # fmt: skip
        return _searched(run, resume, folder, name or run.problem.trace.name, copied)


def _searched(
    run: GrowRun,
    resume: str | os.PathLike[str] | None,
    folder: str | os.PathLike[str] | None,
    name: str,
    sources: Mapping[str, bytes],
) -> GrowResult:
    """Search in a folder, new or to continue, of which rank 0 has the real one; then its report.

    The session is recorded, and what is under way.
    """
    ranks, known = run.ranks, None if resume is None else Path(resume)
    with contextlib.ExitStack() as held:
        home = Path(RUNS if folder is None else folder)
        if not ranks.first:
            home = held.enter_context(scratch_folder(known))

        def open_folder() -> GrowFolder:
            if known is None:
                return GrowFolder.create(home, name, run.settings.seed)
            return GrowFolder.open(known if ranks.first else home)

        opened = held.enter_context(contextlib.closing(ranks.together(open_folder)))
        if ranks.first:
            held.enter_context(recorded_session(opened.path))
            held.enter_context(run.printer.written_to(opened.path))
        opened.keep_sources(sources)
        result = run.search(opened, known is not None)
    if ranks.first:
        write_report(result, run.printer)
    return result


def write_report(result: GrowResult, printer: ProgressPrinter) -> None:
    """Write the report of a search whose folder is closed; a full disk is a warning."""
    printer.phase("writing the report")
    try:
        result.report()
    except EsperError as error:
        printer.warn(f"{error}; esper report {result.folder} writes it again")


def prepare_run(
    model: Model,
    parts: tuple[Any, Any, Any],
    budget: Budget | None,
    settings: GrowSettings,
    printer: ProgressPrinter,
    *,
    sample_weights: Any = None,
    ranks: Ranks = ONE_PROCESS,
    began: float | None = None,
) -> GrowRun:
    """Read the data, trace the model, check both, and decide how the search is run.

    `parts`: train, val and test; `ranks`: the processes that train together; `began`: when the call
    began, on the monotonic clock.
    """
    began = time.monotonic() if began is None else began
    budget = Budget() if budget is None else budget
    if not isinstance(budget, Budget):
        raise EsperError(f"budget={budget!r}: give esper.Budget(params=..., minutes=...)")

    def read_problem() -> Problem:
        printer.phase("reading data")
        two_inputs = settings.categorical is not None and takes_two_inputs(model)
        data = read_data(*parts, settings, sample_weights, two_inputs)
        printer.phase("tracing the model")
        return make_problem(model, data, settings)

    problem = ranks.together(read_problem)
    ranks.require_same("data", problem.data.fingerprint)
    ranks.require_same("model", problem.architecture)
    run = GrowRun(problem, settings, budget, printer, began, ranks)
    run.prepare()
    return run
