"""`compare_runs`: what the comparison page shows beside curves: differences and settings.

A run that cannot be read is named in `problems`, and the others are there all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from esper.karn import views
from esper.karn.views.damage import UNREADABLE, problem_of
from esper.karn.views.plain import to_plain
from esper.karn.web.places import RunsFolder
from esper.leyline.codec import Json

MAX_RUNS: Final = 8
"""In one comparison; the page has as many colours."""


def compare_runs(folder: RunsFolder, ids: Sequence[str], baseline: str) -> dict[str, Json]:
    """Settings of each run, and its differences to the baseline; by default that is the first."""
    chosen = list(dict.fromkeys(ids))[:MAX_RUNS]
    reference = baseline if baseline in chosen else next(iter(chosen), "")
    problems: dict[str, list[str]] = {}
    settings: dict[str, Json] = {}
    differences: dict[str, Json] = {}
    for run in chosen:
        said: list[str] = []
        try:
            path = folder.path_of(run)
            found = views.read_settings(path)
            settings[run] = to_plain(found.values)
            said += found.problems
            if run != reference:
                apart = views.compare_with_baseline(path, folder.path_of(reference))
                differences[run] = to_plain(apart)
        except UNREADABLE as error:
            said.append(problem_of(error))
        if said:
            problems[run] = said
    return {
        "baseline": reference,
        "settings": settings,
        "differences": differences,
        "problems": to_plain(problems),
    }
