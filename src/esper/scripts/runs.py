"""`esper runs`: list runs of every kind with their state, progress and scores, and tag them.

esper runs                      tables of the folders in ./runs
esper runs --runs out           of another folder
esper runs --tag good           of the runs with this tag
esper runs --json               as JSON
esper runs tag RUN good         gives a run a tag, or several; --remove takes them away
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import tyro

from esper.leyline.codec import Json
from esper.leyline.errors import EsperError
from esper.plotting.durations import duration
from esper.plotting.numbers import number
from esper.scripts.cli.command import exit_status_of, read_command_line, run_command
from esper.scripts.cli.output import say
from esper.scripts.cli.run_paths import RUNS, find_run

if TYPE_CHECKING:
    from rich.table import Table

    from esper.karn.views import RunSummary

TRAIN_COLUMNS: Final = (
    "run",
    "state",
    "rounds",
    "judged",
    "training",
    "time",
    "created UTC",
)
GROW_COLUMNS: Final = (
    "grow run",
    "state",
    "test score",
    "gain",
    "parameters",
    "time",
    "created UTC",
)
OTHER_COLUMNS: Final = ("comparison, audit", "state", "done", "result", "created UTC")
WIDTH: Final = 100
"""Most columns of a table."""
MAX_FIGURE: Final = 24
"""Most columns of a figure: one of a damaged file may have 300 digits."""
_TAG: Final = "tag"
"""The word after `esper runs` that tags a run instead."""
PROG: Final = f"esper runs {_TAG}"


@dataclass(frozen=True)
class _ListRuns:
    """List runs of every kind with their state, progress and scores.

    `esper runs tag RUN TAG` gives a run a tag.
    """

    runs: Path = RUNS
    """Folder that contains the run folders."""
    tag: tuple[str, ...] = ()
    """List the runs that have all of these tags."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclass(frozen=True)
class _TagRun:
    """Give a run tags, also while it is written."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, or its name in ./runs."""
    tags: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TAG...")] = ()
    """Words, as in: baseline good."""
    remove: bool = False
    """Take these tags away."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] == _TAG:
        flags = argv[1:]
        return exit_status_of(lambda: _tag_run(read_command_line(_TagRun, flags, prog=PROG)))
    return run_command(_ListRuns, _show_runs, argv)


def _tag_run(config: _TagRun) -> None:
    """Change the tags of a run and print those it has then."""
    from esper.karn.views import kind_of
    from esper.storage.tags import change_tags

    path = find_run(config.run)
    kind_of(path)  # raises if it holds no run
    if not config.tags:
        raise EsperError(f"name the tags: esper runs tag {config.run} TAG...")
    added, removed = ((), config.tags) if config.remove else (config.tags, ())
    say(f"{path}: {', '.join(change_tags(path, added, removed)) or 'no tags'}")


def _show_runs(config: _ListRuns) -> None:
    """Print the list. Imports are local, so that --help is fast."""
    from esper.karn.views import list_runs

    before_any_run = config.runs == RUNS and not RUNS.exists()
    found = () if before_any_run else list_runs(config.runs)
    kept = [run for run in found if set(config.tag) <= set(run.tags)]
    if config.json:
        say(json.dumps([entry(run) for run in kept], indent=2))
    elif kept:
        _print_tables(kept)
    elif found:
        say(f"none of the {len(found)} runs in {config.runs} is tagged {' and '.join(config.tag)}")
    else:
        say(f"no runs in {config.runs} yet: esper grow --demo starts one")


def entry(run: RunSummary) -> dict[str, Json]:
    """One run as a JSON object; unknown values are null."""
    from esper.karn.views import to_plain

    plain = to_plain(run)
    assert isinstance(plain, dict)
    return plain | {"headline": run.headline}


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
        console.print(_table(TRAIN_COLUMNS, (2, 3, 4, 5), _train_row, trained))
    if grown:
        console.print(_table(GROW_COLUMNS, (2, 3, 4, 5), _grow_row, grown))
    if others:
        console.print(_table(OTHER_COLUMNS, (), _other_row, others))
    for run in (run for run in found if run.problem):
        console.print(Text(f"{run.name}: {run.problem}", style="yellow"), soft_wrap=True)


def _table(
    columns: Sequence[str],
    figures: Sequence[int],
    row: Callable[[RunSummary], list[str]],
    runs: Sequence[RunSummary],
) -> Table:
    """One row per run; tags are shown where a run has any."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, column in enumerate(columns):
        # Names give way: they are folded over lines, figures never are, unless they are absurd.
        side: Literal["right", "left"] = "right" if place in figures else "left"
        folds = column in (columns[0], "result")
        most = None if folds else MAX_FIGURE
        table.add_column(column, justify=side, no_wrap=not folds, max_width=most)
    is_tagged = any(run.tags for run in runs)
    if is_tagged:
        table.add_column("tags")
    for run in runs:
        name, *cells = row(run)
        tags = [Text(", ".join(run.tags), overflow="fold")] if is_tagged else []
        table.add_row(Text(name, overflow="fold"), *cells, *tags)
    return table


def _train_row(run: RunSummary) -> list[str]:
    return [
        run.name,
        run.state.value,
        f"{run.done:,.0f}/{run.total:,.0f}" if run.total else "-",
        number(run.result.score if run.result.is_judged else None),
        number(run.score),
        _time(run),
        run.created_short or "-",
    ]


def _grow_row(run: RunSummary) -> list[str]:
    return [
        run.name,
        run.state.value,
        number(run.score),
        _gain(run),
        number(run.params),
        _time(run),
        run.created_short or "-",
    ]


def _gain(run: RunSummary) -> str:
    """Over the user's model, where the pick is another one."""
    gain = run.result.gain
    return "-" if gain is None else f"{gain.value:+.4f}"


def _other_row(run: RunSummary) -> list[str]:
    return [
        run.name,
        run.state.value,
        run.amount if run.unit else "-",
        run.headline or "-",
        run.created_short or "-",
    ]


def _time(run: RunSummary) -> str:
    """How long it ran; while it runs, also the share that is done."""
    from esper.karn.views import RunState

    time = duration(run.seconds)
    if run.state is RunState.RUNNING and run.progress is not None:
        return f"{time} ({run.progress:.0%})"
    return time
