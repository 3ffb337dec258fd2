"""The `esper compare` command, and the same as a function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from esper.scripts.cli.command import enter

if TYPE_CHECKING:
    from esper.scripts.compare.comparison import Comparison
    from esper.scripts.compare.config import Compare


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    from esper.scripts.compare.config import Compare

    return enter(Compare, compare, argv)


def compare(config: Compare) -> None:
    """Compare and report. Heavy libraries are imported here, so that --help is quick."""
    config.check()
    from esper.scripts.compare.report import report
    from esper.tolaria.runtime import set_deterministic_cublas

    set_deterministic_cublas()
    found = compare_policies(config)
    report(found, config.folder(found.settings.task))


def compare_policies(config: Compare) -> Comparison:
    """What each policy comes to on the same hosts, held against the first one.

    Results are kept in the config's folder; those that are there are not computed again.
    """
    config.check()
    from esper.scripts.cli.console import console_for_report
    from esper.scripts.compare.run import run_comparison

    return run_comparison(config, console_for_report())
