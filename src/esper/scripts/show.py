"""`esper show`: show the outcome of a run.

esper show RUN              outcome of a run of any kind: verdict, state, what matters in a table
esper show RUN --json       as JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from esper.scripts.cli.command import run_command

if TYPE_CHECKING:
    from esper.growing.folder import GrowInfo


@dataclass(frozen=True)
class Show:
    """Show the outcome of a run: verdict, frontier and settings."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run folder, or its name in ./runs."""
    json: bool = False
    """Print JSON instead."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    return run_command(Show, show, argv)


def show(config: Show) -> None:
    """Print it. Imports are local, so that --help is fast."""
    from esper.karn.views import RunKind, kind_of
    from esper.scripts.cli.run_paths import find_run

    path = find_run(config.run)
    kind = kind_of(path)
    if kind is RunKind.GROW:
        show_grow_run(path, config.json)
    elif kind is RunKind.TRAIN:
        show_training_run(path, config.json)
    else:
        show_contenders(path, config.json)


def show_grow_run(path: Path, as_json: bool) -> None:
    """Verdict, frontier and settings; without a result yet, its state."""
    from esper.growing.folder import read_info
    from esper.growing.listing import RESULT, listed_grow_run
    from esper.growing.result import GrowResult
    from esper.leyline.codec import to_json
    from esper.scripts.runs import grow_entry

    info, listed = read_info(path), listed_grow_run(path)
    result = GrowResult.load(path) if (path / RESULT).exists() else None
    if as_json:
        record = None if result is None else to_json(result.record)
        document = grow_entry(listed) | {"settings": to_json(info), "result": record}
        print(json.dumps(document, indent=2))
        return
    if result is None:
        print(f"{listed.state.value}: {listed.runs or 0:.2f} of {info.runs:.3g} host runs, no "
              f"result yet")  # fmt: skip
        print(f"\nrun folder: {path}")
    else:
        print(result)
    print("\n" + "\n".join(setting_lines(info, listed.state.value)))


def setting_lines(info: GrowInfo, state: str) -> list[str]:
    """Settings of a grow run, one line each."""
    from esper.growing.settings_text import settings_of

    rows = [("state", state), *settings_of(info)]
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {value}" for name, value in rows]


def show_training_run(path: Path, as_json: bool) -> None:
    """Verdict, and what the list of runs knows about it."""
    from esper.karn import views
    from esper.karn.report.page import verdict
    from esper.scripts.runs import entry
    from esper.simic.training.runs.folder import require_run
    from esper.simic.training.runs.listing import listed_run

    require_run(path)
    found: dict[str, Any] = entry(listed_run(path))
    rounds = views.read_rounds(path) if found["state"] != "broken" else ()
    if as_json:
        print(json.dumps(found | {"rounds": views.to_plain(rounds)}, indent=2))
        return
    if rounds:
        print(f"{verdict(views.run_summary(path))}\n")
    known = {name.replace("_", " "): v for name, v in found.items() if v not in (None, "")}
    width = max(map(len, known))
    for name, value in known.items():
        print(f"{name:<{width}}  {value:.4f}" if isinstance(value, float) else
              f"{name:<{width}}  {value}")  # fmt: skip


def show_contenders(path: Path, as_json: bool) -> None:
    """Verdict and contenders of a comparison or an audit."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from esper.karn import views
    from esper.karn.report.page import verdict
    from esper.karn.report.sections import interval, number
    from esper.scripts.cli.console import console_for_report

    found, contenders = views.run_summary(path), views.read_contenders(path)
    if as_json:
        described = views.to_plain(found)
        assert isinstance(described, dict)
        print(json.dumps(described | {"contenders": views.to_plain(contenders)}, indent=2))
        return
    print(verdict(found))
    table = Table(box=SIMPLE_HEAD)
    for place, name in enumerate(("policy", "score (95 %)", "difference", "test", "parameters",
                                  "compute", "n")):  # fmt: skip
        table.add_column(name, justify="right" if place else "left")
    for one in contenders:
        table.add_row(
            Text(one.label, overflow="fold"),
            interval(one.score),
            "the reference" if one.is_reference else interval(one.difference, "+.4f"),
            number(one.test.value),
            number(one.params, ",.0f"),
            number(one.compute, ".2f"),
            str(one.n),
        )
    console_for_report().print(table)
    total = "" if found.total is None else f" of {found.total:g}"
    print(f"{found.state.value}: {found.done:g}{total} {found.unit}\nfolder: {path}")


if __name__ == "__main__":
    sys.exit(main())
