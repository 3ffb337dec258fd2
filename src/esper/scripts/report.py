"""`esper report`: write the report of a grow run as one HTML page, from its folder alone.

esper report RUN                    writes RUN/report.html
esper report RUN --out page.html
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from esper.scripts.cli.command import run_command


@dataclass(frozen=True)
class Report:
    """Write the report of a grow run as one self-contained HTML page."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run folder, or its name in ./runs."""
    out: Path | None = None
    """File to write; default: report.html in the run folder."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    return run_command(Report, report, argv)


def report(config: Report) -> None:
    """Write the page. Imports are local, so that --help is fast."""
    from esper.growing.result import GrowResult
    from esper.scripts.cli.run_paths import find_run

    print(GrowResult.load(find_run(config.run)).report(config.out))


if __name__ == "__main__":
    sys.exit(main())
