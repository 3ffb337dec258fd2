"""The `esper compare` command, and `compare_policies` for Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from esper.scripts.cli.command import run_command

if TYPE_CHECKING:
    from esper.scripts.compare.comparison import Comparison, PolicyDone
    from esper.scripts.compare.config import Compare


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    from esper.scripts.compare.config import Compare

    words = sys.argv[1:] if argv is None else argv
    return run_command(Compare, lambda config: compare(config, words), words)


def compare(config: Compare, words: Sequence[str] = ()) -> None:
    """Compare and report. Imports are local, so that --help is fast.

    `words`: the command line, to be repeated when the comparison is interrupted.
    """
    config.check()
    from esper.scripts.cli.console import console_for_report
    from esper.scripts.cli.resuming import command_line
    from esper.scripts.cli.run_page import write_run_page
    from esper.scripts.compare.report import report
    from esper.scripts.compare.run import run_comparison
    from esper.tolaria.runtime import set_deterministic_cublas

    set_deterministic_cublas()
    command = command_line("compare", words) if words else ""
    found = run_comparison(config, console_for_report(), on_end=report, command=command)
    write_run_page(config.folder(found.settings.task))


def compare_policies(
    config: Compare, on_round: Callable[[PolicyDone], None] | None = None
) -> Comparison:
    """Compare policies on the same hosts, with the first as reference.

    Results are saved in the config's folder; existing ones are reused. `on_round`: called for every
    policy that ran, once its result is saved; what it raises ends the comparison.
    """
    config.check()
    from esper.scripts.cli.console import console_for_report
    from esper.scripts.compare.run import run_comparison

    return run_comparison(config, console_for_report(), on_round)
