"""`esper show`: show the outcome of a run.

esper show RUN              outcome of a run of any kind: verdict, state, what matters in a table
esper show RUN --json       as JSON
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from esper.scripts.cli.command import run_command
from esper.scripts.cli.output import say

if TYPE_CHECKING:
    from esper.karn.views import RunSummary


@dataclass(frozen=True)
class _Show:
    """Show the outcome of a run: verdict, frontier and settings."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, or its name in ./runs."""
    json: bool = False
    """Print JSON instead."""


def _show(config: _Show) -> None:
    """Print it. Imports are local, so that --help is fast."""
    from esper.karn.views import RunKind, kind_of
    from esper.karn.views.damage import naming_damage
    from esper.scripts.cli.run_paths import find_run

    path = find_run(config.run)
    makers = {RunKind.GROW: _show_grow_run, RunKind.TRAIN: _show_training_run}
    with naming_damage(path):
        makers.get(kind_of(path), _show_contenders)(path, config.json)


def _show_grow_run(path: Path, as_json: bool) -> None:
    """Verdict, frontier and settings; without a result yet, its state."""
    from esper.growing.folder import RESULT, read_info
    from esper.growing.result import GrowResult
    from esper.karn.views import run_summary
    from esper.karn.views.search_notes import settings_rows
    from esper.leyline.codec import to_json
    from esper.scripts.runs import entry

    info, found = read_info(path), run_summary(path)
    result = GrowResult.load(path) if (path / RESULT).exists() else None
    if as_json:
        record = None if result is None else to_json(result.record)
        document = entry(found) | {"settings": to_json(info), "result": record}
        say(json.dumps(document, indent=2))
        return
    if result is None:
        say(f"{found.state.value}: {found.amount}, not judged on test yet")
        say(f"\nrun folder: {path}")
    else:
        say(result)
    known = [("result", found.headline), ("state", found.state.value), *_under_way(found)]
    rows = [*((name, value) for name, value in known if value), *settings_rows(path)]
    width = max(len(name) for name, _ in rows)
    say("\n" + "\n".join(f"{name:<{width}}  {value}" for name, value in rows))


def _under_way(found: RunSummary) -> list[tuple[str, str]]:
    """What its process is doing, and how long the rest takes."""
    from esper.plotting.durations import duration

    left = "" if found.seconds_left is None else f"about {duration(found.seconds_left)}"
    return [("now", found.under_way), ("time left", left)]


def _show_training_run(path: Path, as_json: bool) -> None:
    """Verdict, and what the list of runs knows about it."""
    from esper.karn import views
    from esper.karn.report.page import verdict
    from esper.plotting.durations import duration
    from esper.scripts.runs import entry

    found = views.run_summary(path)
    rounds = views.read_rounds(path) if found.state is not views.RunState.BROKEN else ()
    if as_json:
        say(json.dumps(entry(found) | {"rounds": views.to_plain(rounds)}, indent=2))
        return
    for fact in found.result.facts:
        beside = f"  {fact.beside}" if fact.beside else ""
        say(f"{fact.name}: {fact.value}{beside}")
    if rounds:
        say(f"\n{verdict(found)}\n")
    facts = [
        ("state", found.state.value),
        *_under_way(found),
        ("problem", found.problem),
        ("done", found.amount),
        ("best round", "" if found.best_round is None else f"{found.best_round}, training score "
                       f"{found.best_score or float('nan'):.4f}"),
        ("seed", "" if found.seed is None else str(found.seed)),
        ("time", duration(found.seconds)),
        ("created", f"{found.created} UTC" if found.created else ""),
        ("resume with", found.resume),
        ("folder", str(path)),
    ]  # fmt: skip
    for name, value in facts:
        if value:
            say(f"{name:<11}  {value}")


def _show_contenders(path: Path, as_json: bool) -> None:
    """Verdict and contenders of a comparison or an audit."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from esper.karn import views
    from esper.karn.report.page import verdict
    from esper.karn.report.sections import contender_head, contender_rows
    from esper.karn.terminal import console_for_report
    from esper.scripts.runs import entry

    found, contenders = views.run_summary(path), views.read_contenders(path)
    if as_json:
        say(json.dumps(entry(found) | {"contenders": views.to_plain(contenders)}, indent=2))
        return
    say(verdict(found))
    table = Table(box=SIMPLE_HEAD)
    for place, name in enumerate(contender_head(contenders)):
        table.add_column(Text(name), justify="right" if place else "left")
    for label, *figures in contender_rows(contenders):
        table.add_row(Text(label, overflow="fold"), *figures)
    if contenders:
        console_for_report().print(table)
    say(f"{found.state.value}: {found.amount}")
    for name, value in _under_way(found):
        if value:
            say(f"{name}: {value}")
    if found.problem:
        say(f"problem: {found.problem}")
    if found.resume:
        say(f"resume with: {found.resume}")
    say(f"folder: {path}")


main = partial(run_command, _Show, _show)
"""Entry point of the command."""
