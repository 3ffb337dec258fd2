"""`esper compare`: paired comparison of policies and saved controllers on the same fresh hosts.

    esper compare wait random heuristic static-full --task digits_impaired --seeds 20
    esper compare heuristic fixed:conv_heavy@2:r0c0,r0c1 learned=runs/RUN
    esper compare wait static-final:r0c0=depthwise,r0c1=conv_light --rent 0.5

Prints tables and writes a report and all numbers (docs/compare.md).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from esper.scripts.cli.command import run_command

if TYPE_CHECKING:
    from esper.compare.comparison import Comparison
    from esper.compare.config import Compare
    from esper.compare.folder import ReportPaths
    from esper.scripts.cli.report_files import ReportFile


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    from esper.compare.config import Compare

    argv = sys.argv[1:] if argv is None else argv
    return run_command(Compare, lambda config: _compare(config, argv), argv)


def _compare(config: Compare, argv: Sequence[str] = ()) -> None:
    """Compare and report. Imports are local, so that --help is fast.

    `argv`: the command line, to be repeated when the comparison is interrupted.
    """
    config.check()
    from esper.compare.run import run_comparison
    from esper.karn.resuming import command_line
    from esper.scripts.cli.run_page import write_run_page
    from esper.tolaria.runtime import set_deterministic_cublas

    set_deterministic_cublas()
    command = command_line("compare", argv) if argv else ""
    found = run_comparison(config, on_end=_report, command=command)
    write_run_page(config.folder(found.settings.task))


def _report(found: Comparison, folder: Path) -> None:
    """Write report and numbers to the folder, then print the tables."""
    from esper.compare.folder import report_paths, unwritable
    from esper.compare.report import markdown, numbers
    from esper.scripts.cli.report_files import json_file, write_before_printing
    from esper.storage.atomic import write_atomic

    places = report_paths(folder)
    text = markdown(found).encode(errors="backslashreplace")
    files: tuple[ReportFile, ...] = (
        json_file(places.numbers, numbers(found)),
        (places.report, lambda path: write_atomic(path, text)),
    )
    try:
        with write_before_printing(*files):
            _print(found, places)
    except OSError as error:
        raise unwritable(folder, error) from error


def _print(found: Comparison, places: ReportPaths) -> None:
    from esper.compare.matching import matching_compute
    from esper.compare.report import cost_table, score_table
    from esper.karn.display import say
    from esper.karn.terminal import console_for_report

    console = console_for_report()
    console.print(score_table(found))
    console.print(cost_table(found))
    for match in matching_compute(found):
        if match.metric == "score":
            runs = f"compute of asha that scores as much, in runs of {match.label}"
            say(console, f"N* of {match.label}: {match} ({runs})")
    for label, path in places._asdict().items():
        say(console, f"{label}: {path}")
