"""Compare policies and saved controllers on the same fresh hosts: who is ahead, and how surely?

    esper compare wait random heuristic static-full --task digits_impaired --seeds 20
    esper compare heuristic fixed:conv_heavy@2:r0c0,r0c1 learned=runs/RUN
    esper compare wait static-final:out/train_heuristic_digits_impaired.json --rent 0.5

Each policy runs one episode on hosts that nothing was trained on; host i is the same for all of
them. At the end a table, a picture, a report and all numbers (docs/compare.md). In Python:

    from esper.scripts.compare import Compare, compare_policies
    found = compare_policies(Compare(("wait", "heuristic"), seeds=20))
    found["heuristic"].standing("score").difference
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from esper.leyline.lazy import attach
from esper.scripts.cli.command import enter

if TYPE_CHECKING:
    from esper.scripts.compare.comparison import Comparison
    from esper.scripts.compare.config import Compare as Compare
else:
    __getattr__, _, _ = attach(__name__, {".config": ("Compare",)})


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    from esper.scripts.compare.config import Compare

    return enter(Compare, compare, argv)


def compare(config: Compare) -> None:
    """Compare and report. Heavy libraries are imported here, so that --help is quick."""
    config.check()
    from esper.scripts.compare.report import report
    from esper.tolaria.machine import ask_for_exact_sums

    ask_for_exact_sums()
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
