"""Writes the HTML report of a run at its end."""

from __future__ import annotations

import sys
from pathlib import Path

from esper.leyline.errors import EsperError
from esper.scripts.cli.output import say


def write_run_page(run: Path) -> None:
    """Write the page into the run folder and say where; a failure costs a line, not the run."""
    from esper.karn.report.page import write_page

    try:
        say(f"page: {write_page(run)}")
    except (EsperError, OSError) as error:
        say(f"no page: {error}; esper report {run} writes it", file=sys.stderr)
