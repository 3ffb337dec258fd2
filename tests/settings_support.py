"""Runs cases of `settings_cases.py` as commands and checks how they end."""

from __future__ import annotations

import functools
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from fuzz_support import (
    Commands,
    Outcome,
    complaint_about,
    in_words,
    shorten_label,
    side_by_side,
    snapshot,
)
from mutation_support import EVIL
from settings_cases import CANARY, SMALL_LEARNER, Case, make_case, printable

SETTINGS_FUZZ = "tests/fuzz/test_settings.py"


def trained_once(commands: Commands, root: Path) -> Callable[[], Path]:
    """Gives the run that commands find as runs/RUN, trained when it is first asked for."""

    @functools.cache
    def trained() -> Path:
        argv = ["train", "ppo", "--task", "synthetic", *SMALL_LEARNER, "--quiet"]
        done = commands.run([*argv, "--blueprints", "norm", "depthwise"], root)
        assert done.status == 0, done.errors
        (run,) = (root / "runs").iterdir()
        return run

    return trained


def prepared(case: Case, place: Path, run_folder: Callable[[], Path]) -> Path:
    """The folder a case is run in."""
    place.mkdir()
    for name, content in case.files.items():
        (place / name).write_bytes(content)
    if case.with_run:
        shutil.copytree(run_folder(), place / "runs" / "RUN")
    return place


def settings_complaint(case: Case, outcome: Outcome, before: dict, place: Path) -> str | None:
    after = snapshot(place)
    if CANARY in after and not any(EVIL in word for word in case.argv):
        return f"a config file made it run {EVIL}"
    after.pop(CANARY, None)
    if not case.argv and outcome.status == 2 and "usage" in outcome.output:
        return None  # `esper` alone prints its help
    if problem := complaint_about(outcome):
        return problem
    if case.must_refuse and outcome.status == 0:
        return "accepted"
    if outcome.status != 0 or not case.writes:
        changed = [name for name in sorted(before.keys() | after.keys())
                   if before.get(name, 0) != after.get(name, 0)]  # fmt: skip
        files = [name for name in changed if not (case.writes and after.get(name, 0) is None)]
        if files:
            return f"nothing was to be written, but there is {files[0]}"
    return None


def reported(case: Case, outcome: Outcome, problem: str) -> str:
    argv = in_words([printable(word) for word in case.argv])
    lines = [
        f"seed {case.seed}: {problem}",
        f"  mutations: {'; '.join(case.mutations) or 'none'}",
        f"  esper {argv}",
    ]
    for name in set(case.argv) & case.files.keys():
        content = case.files[name].decode("utf-8", "backslashreplace")
        lines.append(f"  {name}: {shorten_label(content)}")
    said = shorten_label(outcome.errors or outcome.output[-300:])
    return "\n".join([*lines, f"  status {outcome.status}: {said.strip()}"])


def fuzz_settings(
    chosen: list[int], commands: Commands, run_folder: Callable[[], Path], root: Path
) -> tuple[list[str], Counter]:
    """Breaks in words, and how often each exit status came."""
    broken, statuses, before = [], Counter(), {}

    def start(case: Case):
        place = prepared(case, root / str(case.seed), run_folder)
        before[case.seed] = snapshot(place)
        return commands.start(case.argv, place)

    for case, outcome in side_by_side(map(make_case, chosen), start):
        place = root / str(case.seed)
        statuses[outcome.status] += 1
        if problem := settings_complaint(case, outcome, before.pop(case.seed), place):
            broken.append(reported(case, outcome, problem))
        shutil.rmtree(place)
    return broken, statuses
