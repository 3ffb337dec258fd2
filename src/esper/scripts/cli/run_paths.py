"""Run folders as they are named on the command line."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Final

from esper.leyline.errors import EsperError

RUNS: Final = Path("runs")
"""Default folder of run folders."""


def find_run(run: Path) -> Path:
    """The folder of a run, by its path or by its name in ./runs."""
    for path in (run, RUNS / run):
        if path.is_dir():
            return path
    if run.exists():
        raise EsperError(f"{run} is a file: name the folder of a run, see esper runs")
    known = [path.name for path in RUNS.iterdir() if path.is_dir()] if RUNS.is_dir() else []
    near = get_close_matches(run.name, known, n=1)
    hint = f"did you mean {RUNS / near[0]}? " if near else ""
    raise EsperError(f"no run {run}: {hint}esper runs lists them")
