"""`esper runs`: list training runs with their state, progress and scores.

esper runs                      a table of the folders in ./runs
esper runs --runs DIR           of another folder
esper runs --json               as JSON
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from esper.scripts.cli.command import run_command

if TYPE_CHECKING:
    from esper.simic.training.runs.listing import ListedRun

RUNS: Final = Path("runs")
PLAIN_WIDTH: Final = 140
"""Columns of the table without a terminal."""


@dataclass(frozen=True)
class ListRuns:
    """List training runs with their state, progress and scores."""

    runs: Path = RUNS
    """Folder that contains the run folders."""
    json: bool = False
    """Print JSON instead of a table."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    return run_command(ListRuns, show_runs, argv)


def show_runs(config: ListRuns) -> None:
    """Print the list. Imports are local, so that --help is fast."""
    from esper.simic.training.runs.listing import list_runs

    before_any_run = config.runs == RUNS and not RUNS.exists()
    found = [] if before_any_run else list_runs(config.runs)
    if config.json:
        print(json.dumps([entry(run) for run in found], indent=2))
    elif found:
        print_table(found)
    else:
        print(f"no runs in {config.runs} yet: esper train ppo starts one")


def entry(run: ListedRun) -> dict[str, Any]:
    """One run as a JSON object; unknown values are null."""
    info, summary = run.info, run.summary
    return {
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


def _known(score: float) -> float | None:
    return None if math.isnan(score) else score


def print_table(found: Sequence[ListedRun]) -> None:
    """Print the runs as a table, oldest first, then their problems."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD)
    for column in ("run", "state", "rounds", "score", "best", "created (UTC)"):
        figures = column in ("rounds", "score", "best")
        table.add_column(column, justify="right" if figures else "left")
    for run in found:
        done = run.summary.round if run.summary else 0
        scores = (run.summary.score, run.summary.best_score) if run.summary else (math.nan,) * 2
        table.add_row(
            Text(run.path.name, overflow="fold"),
            run.state.value,
            f"{done}/{run.rounds}" if run.rounds else "-",
            *("-" if math.isnan(score) else f"{score:.4f}" for score in scores),
            run.created or "-",
        )
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    console.print(table)
    for run in found:
        if run.problem:
            console.print(Text(f"{run.path.name}: {run.problem}", style="yellow"), soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
