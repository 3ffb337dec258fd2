"""The `esper compare` command, and `compare_policies` for Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from esper.scripts.cli.command import run_command

if TYPE_CHECKING:
    from esper.scripts.compare.comparison import Comparison
    from esper.scripts.compare.config import Compare


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    from esper.scripts.compare.config import Compare

    return run_command(Compare, compare, argv)


def compare(config: Compare) -> None:
    """Compare and report. Imports are local, so that --help is fast."""
    config.check()
    from esper.scripts.compare.report import report
    from esper.tolaria.runtime import set_deterministic_cublas

    set_deterministic_cublas()
    found = compare_policies(config)
    report(found, config.folder(found.settings.task))


def compare_policies(config: Compare) -> Comparison:
    """Compare policies on the same hosts, with the first as reference.

    Results are saved in the config's folder; existing ones are reused.
    """
    config.check()
    from esper.scripts.cli.console import console_for_report
    from esper.scripts.compare.run import run_comparison

    return run_comparison(config, console_for_report())
