"""`esper runs`: list runs of every kind with their state, progress and scores.

esper runs                      tables of the folders in ./runs
esper runs --runs out           of another folder
esper runs --json               as JSON
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from esper.leyline.codec import Json
from esper.plotting.durations import duration
from esper.plotting.numbers import number
from esper.scripts.cli.command import run_command
from esper.scripts.cli.output import say
from esper.scripts.cli.run_paths import RUNS

if TYPE_CHECKING:
    from rich.table import Table

    from esper.karn.views import RunSummary

TRAIN_COLUMNS: Final = ("run", "state", "rounds", "score", "best", "time", "created (UTC)")
GROW_COLUMNS: Final = (
    "grow run",
    "state",
    "test score",
    "your model",
    "parameters",
    "time",
    "created (UTC)",
)
OTHER_COLUMNS: Final = ("comparison, audit", "state", "done", "task", "created (UTC)")
WIDTH: Final = 100
"""Most columns of a table."""


@dataclass(frozen=True)
class _ListRuns:
    """List runs of every kind with their state, progress and scores."""

    runs: Path = RUNS
    """Folder that contains the run folders."""
    json: bool = False
    """Print JSON instead of a table."""


def _show_runs(config: _ListRuns) -> None:
    """Print the list. Imports are local, so that --help is fast."""
    from esper.karn.views import list_runs

    before_any_run = config.runs == RUNS and not RUNS.exists()
    found = () if before_any_run else list_runs(config.runs)
    if config.json:
        say(json.dumps([entry(run) for run in found], indent=2))
    elif found:
        _print_tables(found)
    else:
        say(f"no runs in {config.runs} yet: esper grow --demo starts one")


def entry(run: RunSummary) -> dict[str, Json]:
    """One run as a JSON object; unknown values are null."""
    from esper.karn.views import to_plain

    plain = to_plain(run)
    assert isinstance(plain, dict)
    return plain


def _print_tables(found: Sequence[RunSummary]) -> None:
    """Print the runs as a table per kind, oldest first, then their problems."""
    from rich.text import Text

    from esper.karn.terminal import Terminal
    from esper.karn.views import RunKind

    console = Terminal(WIDTH)
    console.width = min(WIDTH, console.width)
    trained = [run for run in found if run.kind is RunKind.TRAIN]
    grown = [run for run in found if run.kind is RunKind.GROW]
    others = [run for run in found if run.kind in (RunKind.COMPARE, RunKind.AUDIT)]
    if trained:
        console.print(_table(TRAIN_COLUMNS, (2, 3, 4, 5), map(_train_row, trained)))
    if grown:
        console.print(_table(GROW_COLUMNS, (2, 3, 4, 5), map(_grow_row, grown)))
    if others:
        console.print(_table(OTHER_COLUMNS, (), map(_other_row, others)))
    for run in (run for run in found if run.problem):
        console.print(Text(f"{run.name}: {run.problem}", style="yellow"), soft_wrap=True)


def _table(columns: Sequence[str], figures: Sequence[int], rows: Iterable[Sequence[str]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, column in enumerate(columns):
        # Names give way: they are folded over lines, figures never are.
        side: Literal["right", "left"] = "right" if place in figures else "left"
        table.add_column(column, justify=side, no_wrap=column not in (columns[0], "task"))
    for name, *cells in rows:
        table.add_row(Text(name, overflow="fold"), *cells)
    return table


def _train_row(run: RunSummary) -> list[str]:
    return [
        run.name,
        run.state.value,
        f"{run.done:,.0f}/{run.total:,.0f}" if run.total else "-",
        *map(number, (run.score, run.best_score)),
        _time(run),
        _created(run),
    ]


def _grow_row(run: RunSummary) -> list[str]:
    return [
        run.name,
        run.state.value,
        *map(number, (run.score, run.host_score)),
        number(run.params),
        _time(run),
        _created(run),
    ]


def _other_row(run: RunSummary) -> list[str]:
    of = "" if run.total is None else f"/{run.total:,.0f}"
    done = f"{run.done:,.0f}{of} {run.unit}" if run.unit else "-"
    return [run.name, run.state.value, done, run.task or "-", _created(run)]


def _time(run: RunSummary) -> str:
    """How long it ran; while it runs, also the share that is done."""
    from esper.karn.views import RunState

    time = duration(run.seconds)
    if run.state is RunState.RUNNING and run.progress is not None:
        return f"{time} ({run.progress:.0%})"
    return time


def _created(run: RunSummary) -> str:
    """When it was made, to the minute and without the year; other text as it is."""
    found = re.fullmatch(r"\d{4}-(\d\d-\d\d \d\d:\d\d):\d\d", run.created)
    return found[1] if found else run.created or "-"


main = partial(run_command, _ListRuns, _show_runs)
"""Entry point of the command."""
