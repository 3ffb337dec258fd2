"""`esper runs`: list training and grow runs with their state, progress and scores.

esper runs                      a table of the folders in ./runs
esper runs --runs DIR           of another folder
esper runs --json               as JSON
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from esper.scripts.cli.command import run_command

if TYPE_CHECKING:
    from rich.table import Table

    from esper.growing.listing import ListedGrowRun
    from esper.simic.training.runs.listing import ListedRun

RUNS: Final = Path("runs")
TRAIN_COLUMNS: Final = ("run", "state", "rounds", "score", "best", "created (UTC)")
GROW_COLUMNS: Final = (
    "grow run",
    "state",
    "host runs",
    "score",
    "your model",
    "parameters",
    "created (UTC)",
)
PLAIN_WIDTH: Final = 140
"""Columns of the table without a terminal."""


@dataclass(frozen=True)
class ListRuns:
    """List training and grow runs with their state, progress and scores."""

    runs: Path = RUNS
    """Folder that contains the run folders."""
    json: bool = False
    """Print JSON instead of a table."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    return run_command(ListRuns, show_runs, argv)


def show_runs(config: ListRuns) -> None:
    """Print the list. Imports are local, so that --help is fast."""
    from esper.growing.listing import list_grow_runs
    from esper.simic.training.runs.listing import list_runs

    before_any_run = config.runs == RUNS and not RUNS.exists()
    trained = [] if before_any_run else list_runs(config.runs)
    grown = [] if before_any_run else list_grow_runs(config.runs)
    if config.json:
        print(json.dumps([*map(entry, trained), *map(grow_entry, grown)], indent=2))
    elif trained or grown:
        print_table(trained, grown)
    else:
        print(f"no runs in {config.runs} yet: esper train ppo starts one")


def entry(run: ListedRun) -> dict[str, Any]:
    """One run as a JSON object; unknown values are null."""
    info, summary = run.info, run.summary
    return {
        "kind": "train",
        "path": str(run.path),
        "state": run.state.value,
        "problem": run.problem,
        "task": info and info.task,
        "name": info and info.name,
        "seed": info and info.seed,
        "created": run.created or None,
        "rounds": run.rounds,
        "rounds_done": summary.round if summary else 0,
        "score": _known(summary.score) if summary else None,
        "best_score": _known(summary.best_score) if summary else None,
        "best_round": summary and summary.best_round,
    }


def grow_entry(run: ListedGrowRun) -> dict[str, Any]:
    """One grow run as a JSON object; unknown values are null."""
    return {
        "kind": "grow",
        "path": str(run.path),
        "state": run.state.value,
        "problem": run.problem,
        "model": run.model,
        "name": run.path.name.partition("__grow__")[0],
        "seed": run.seed,
        "created": run.created or None,
        "metric": run.metric,
        "host_runs": run.runs,
        "budget_runs": run.budget_runs,
        "params": run.params,
        "score": run.score,
        "host_score": run.host_score,
        "verdict": run.verdict,
    }


def _known(score: float) -> float | None:
    return None if math.isnan(score) else score


def print_table(found: Sequence[ListedRun], grown: Sequence[ListedGrowRun] = ()) -> None:
    """Print the runs as tables, oldest first, then their problems."""
    from rich.console import Console
    from rich.text import Text

    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    if found:
        console.print(_table(TRAIN_COLUMNS, (2, 3, 4), map(_row, found)))
    if grown:
        console.print(_table(GROW_COLUMNS, (2, 3, 4, 5), map(_grow_row, grown)))
    problems = [(run.path, run.problem) for run in found]
    problems += [(run.path, run.problem) for run in grown]
    for path, problem in problems:
        if problem:
            console.print(Text(f"{path.name}: {problem}", style="yellow"), soft_wrap=True)


def _table(columns: Sequence[str], figures: Sequence[int], rows: Iterable[Sequence[str]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place in figures else "left")
    for name, *cells in rows:
        table.add_row(Text(name, overflow="fold"), *cells)
    return table


def _row(run: ListedRun) -> list[str]:
    done = run.summary.round if run.summary else 0
    scores = (run.summary.score, run.summary.best_score) if run.summary else (math.nan,) * 2
    return [
        run.path.name,
        run.state.value,
        f"{done}/{run.rounds}" if run.rounds else "-",
        *("-" if math.isnan(score) else f"{score:.4f}" for score in scores),
        run.created or "-",
    ]


def _grow_row(run: ListedGrowRun) -> list[str]:
    spent = "-" if run.runs is None else f"{run.runs:.1f}/{run.budget_runs:g}"
    return [
        run.path.name,
        run.state.value,
        spent,
        *("-" if score is None else f"{score:.4f}" for score in (run.score, run.host_score)),
        "-" if run.params is None else f"{run.params:,}",
        run.created or "-",
    ]


if __name__ == "__main__":
    sys.exit(main())
