"""`esper tui`: watch runs in the terminal, live or after their end.

esper tui                  choose from the runs in ./runs
esper tui RUN              one run of train, grow, compare or audit
esper tui DIR              choose from another folder of runs
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import tyro

from esper.leyline.errors import EsperError, install_hint
from esper.scripts.cli.command import run_command


@dataclass(frozen=True)
class _Tui:
    """Watch runs in the terminal, live or after their end; keys are shown at the bottom."""

    run: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = None
    """Run folder, its name in ./runs, or a folder of runs; default: choose from ./runs."""


def _watch(config: _Tui) -> None:
    """Open the interface. Imports are local, so that --help is fast."""
    if find_spec("textual") is None:
        raise EsperError(f"esper tui needs Textual: {install_hint('tui')}")
    from esper.karn.tui.app import EsperTUI
    from esper.karn.views.kinds import find_kind
    from esper.scripts.cli.run_paths import RUNS, find_run

    if config.run is None:
        root, run = RUNS, None
    else:
        path = find_run(config.run)
        root, run = (path.parent, path) if find_kind(path) is not None else (path, None)
    if not _is_terminal():
        raise EsperError("esper tui needs a terminal; esper show RUN prints a run anywhere")
    EsperTUI(root, run).run()


def _is_terminal() -> bool:
    """Whether there is a terminal to draw on and to read keys from."""
    return sys.stdin.isatty() and sys.__stdout__ is not None and sys.__stdout__.isatty()


main = partial(run_command, _Tui, _watch)
"""Entry point of the command."""
