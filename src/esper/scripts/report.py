"""`esper report`: write the report of a run as one HTML page, from its folder.

esper report RUN                    writes RUN/report.html
esper report RUN --out page.html
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from esper.scripts.cli.command import run_command
from esper.scripts.cli.output import say


@dataclass(frozen=True)
class _Report:
    """Write the report of a run (train, grow, compare, audit) as one self-contained HTML page."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, or its name in ./runs."""
    out: Path | None = None
    """File to write; default: report.html in the run folder."""


def _report(config: _Report) -> None:
    """Write the page. Imports are local, so that --help is fast."""
    from esper.karn.report.page import write_page
    from esper.scripts.cli.run_paths import find_run

    say(write_page(find_run(config.run), config.out))


main = partial(run_command, _Report, _report)
"""Entry point of the command."""
