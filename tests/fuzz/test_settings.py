"""Wrong settings: 1,000 config files and command lines, each accepted or refused in one line.

A seed makes a valid command or config file and mutates it (`settings_cases.py`). Whatever comes
out, the command ends with status 0 or 2, without a traceback, in 90 seconds, and a refusal is
one line of at most 400 characters. `--dry-run` and refusals write nothing, no config file runs
code, and what is surely a mistake (NaN, an unknown setting, text for a count) is refused.

Repeat one case, or try others:

    ESPER_FUZZ_SEEDS=17 python -m pytest -m slow tests/fuzz/test_settings.py -k one_line
    ESPER_FUZZ_SEEDS=5000:6000 python -m pytest -m slow tests/fuzz/test_settings.py -k one_line
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz_support import (
    Commands,
    Outcome,
    complaint_about,
    in_words,
    require_none,
    seeds,
    shortened,
    side_by_side,
    snapshot,
)
from mutation_support import EVIL
from settings_cases import CANARY, SMALL_LEARNER, Case, make_case, printable

HERE = "tests/fuzz/test_settings.py"


@pytest.fixture(scope="session")
def run_folder(commands, tmp_path_factory) -> Callable[[], Path]:
    """The run that commands find as runs/RUN, trained when it is first asked for."""

    @functools.cache
    def trained() -> Path:
        root = tmp_path_factory.mktemp("trained")
        words = ["train", "ppo", "--task", "synthetic", *SMALL_LEARNER, "--quiet"]
        done = commands.run([*words, "--blueprints", "norm", "depthwise"], root)
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


def complaint(case: Case, outcome: Outcome, before: dict, place: Path) -> str | None:
    after = snapshot(place)
    if CANARY in after and not any(EVIL in word for word in case.words):
        return f"a config file made it run {EVIL}"
    after.pop(CANARY, None)
    if not case.words and outcome.status == 2 and "usage" in outcome.output:
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


def told(case: Case, outcome: Outcome, problem: str) -> str:
    words = in_words([printable(word) for word in case.words])
    lines = [
        f"seed {case.seed}: {problem}",
        f"  mutations: {'; '.join(case.mutations) or 'none'}",
        f"  esper {words}",
    ]
    if "--config" in case.words and case.files:
        name, content = next(iter(case.files.items()))
        lines.append(f"  {name}: {shortened(content.decode('utf-8', 'backslashreplace'))}")
    said = shortened(outcome.errors or outcome.output[-300:])
    return "\n".join([*lines, f"  status {outcome.status}: {said.strip()}"])


def fuzz(
    chosen: list[int], commands: Commands, run_folder: Callable[[], Path], root: Path
) -> tuple[list[str], Counter]:
    """Breaks in words, and how often each exit status came."""
    broken, statuses, before = [], Counter(), {}

    def start(case: Case):
        place = prepared(case, root / str(case.seed), run_folder)
        before[case.seed] = snapshot(place)
        return commands.start(case.words, place)

    for case, outcome in side_by_side(map(make_case, chosen), start):
        place = root / str(case.seed)
        statuses[outcome.status] += 1
        if problem := complaint(case, outcome, before.pop(case.seed), place):
            broken.append(told(case, outcome, problem))
        shutil.rmtree(place)
    return broken, statuses


def test_a_few_wrong_settings_are_accepted_or_refused_in_one_line(commands, run_folder, tmp_path):
    cheap = [seed for seed in range(30) if not make_case(seed).with_run][:14]
    broken, _ = fuzz(cheap, commands, run_folder, tmp_path)
    require_none(broken, HERE, "one_line")


@pytest.mark.slow
def test_a_thousand_wrong_settings_are_accepted_or_refused_in_one_line(
    commands, run_folder, tmp_path
):
    chosen = seeds(0, 1000)
    broken, statuses = fuzz(chosen, commands, run_folder, tmp_path)
    require_none(broken, HERE, "one_line")
    if len(chosen) == 1000:  # most are mistakes, but not so bad that little is ever reached
        assert min(statuses[0], statuses[2]) >= 100, statuses


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 14, 15, 92, 65, 35])
def test_a_command_forked_ends_as_one_started_by_hand(seed, commands, run_folder, tmp_path):
    case = make_case(seed)
    forked = commands.run(case.words, prepared(case, tmp_path / "forked", run_folder))
    words = map(os.fsencode, (sys.executable, "-m", "esper.scripts.main", *case.words))
    path = os.pathsep.join(sys.path)
    real = subprocess.run(
        list(words),
        cwd=prepared(case, tmp_path / "real", run_folder),
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": path},
        timeout=120,
    )
    said = real.stderr.decode(errors="replace")
    assert (real.returncode, said) == (forked.status, forked.errors), in_words(case.words)
