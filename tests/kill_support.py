"""Kills training commands at random moments, resumes them and checks the result."""

from __future__ import annotations

import json
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from esper.simic.training.runs.checkpoint_store import MANIFEST, CheckpointStore
from fuzz_support import Commands, Outcome, outcome_of, shorten_label
from resume_support import same_runs
from run_server import Job
from settings_cases import SMALL_LEARNER

KILL_FUZZ = "tests/fuzz/test_kills.py"
SIGNALS = {signal.SIGKILL: 5, signal.SIGTERM: 2, signal.SIGINT: 2, signal.SIGHUP: 1}
IN_A_WRITE = 0.3
"""Share of the signals that are sent while a checkpoint is written."""
EARLIEST = 0.05
"""Seconds: before that it is the test's own code that is hit."""


def training(rounds: int) -> list[str]:
    small = ("--envs", "2", "--rounds", str(rounds), "--evaluation-envs", "1")
    return ["train", "ppo", "--task", "synthetic", *SMALL_LEARNER, *small]


@dataclass(frozen=True)
class Whole:
    """The run that nothing stopped."""

    run: Path
    argv: list[str]
    seconds: float


def finished(commands: Commands, place: Path, rounds: int) -> Whole:
    place.mkdir()
    commands.run(["tasks"], place)  # the server is ready then
    began = time.monotonic()
    done = commands.run(training(rounds), place)
    assert done.status == 0, done.errors
    return Whole(runs_in(place)[0], training(rounds), time.monotonic() - began)


def runs_in(place: Path) -> list[Path]:
    """Run folders; one that is not whole yet has a hidden name."""
    found = (place / "runs").glob("*") if (place / "runs").is_dir() else ()
    return sorted(path for path in found if not path.name.startswith("."))


# ---- one life -----------------------------------------------------------------------------------


def end_at_random(job: Job, place: Path, chance: random.Random, longest: float) -> signal.Signals:
    """Send a signal at a random moment; the process may have ended before."""
    number = chance.choices(list(SIGNALS), list(SIGNALS.values()))[0]
    moment = time.monotonic() + chance.uniform(EARLIEST, longest)
    in_a_write, delay = chance.random() < IN_A_WRITE, chance.uniform(0, 0.01)
    while time.monotonic() < moment:
        if in_a_write and time.monotonic() > moment - longest / 2 and drafts(place):
            time.sleep(delay)
            break
        time.sleep(0.0005 if in_a_write else 0.005)
    job.send(number)
    return number


def drafts(place: Path) -> bool:
    """Whether a checkpoint is being written: it has no manifest yet."""
    found = (place / "runs").glob("*/checkpoints/*round-*")
    return any(not (path / MANIFEST).exists() for path in found)


def kill_complaint(outcome: Outcome, number: signal.Signals, place: Path) -> str:
    """What is wrong with how a command ended; empty: nothing."""
    expected = {0, -number} if number == signal.SIGKILL else {0, -number, 130, 128 + number}
    if outcome.status not in expected:
        return f"status {outcome.status}"
    # Ctrl-C that hits a callback of the garbage collector is printed by Python, and ignored.
    if "Traceback" in outcome.errors and "Exception ignored" not in outcome.errors:
        return "traceback"
    for run in runs_in(place):
        skipped = CheckpointStore(run / "checkpoints").newest_valid().skipped
        if skipped:
            return f"half a checkpoint: {skipped[0]}"
    return ""


def is_done(outcome: Outcome) -> bool:
    """The last thing a whole run prints, after its report is written."""
    return outcome.status == 0 and "evaluate again with" in outcome.output


# ---- the fuzz -----------------------------------------------------------------------------------


def killed_run(
    commands: Commands, whole: Whole, root: Path, chance: random.Random, kills: int
) -> tuple[int, list[str]]:
    """Kill one run until it is done, at most `kills` times; how often, and what went wrong."""
    root.mkdir()
    broken: list[str] = []
    for life in range(kills + 1):
        here = runs_in(root)
        argv = ["train", "ppo", "--resume", f"runs/{here[0].name}"] if here else whole.argv
        job = commands.start(argv, root)
        if life == kills:  # the last one may live
            outcome = outcome_of(job)
            assert is_done(outcome), outcome.errors
            break
        number = end_at_random(job, root, chance, 0.7 * whole.seconds)
        outcome = outcome_of(job)
        if problem := kill_complaint(outcome, number, root):
            broken.append(f"{problem} after {number.name} in life {life}: {reported(outcome)}")
        if is_done(outcome):
            break
    if problem := difference(runs_in(root)[0], whole.run):
        broken.append(problem)
    return life, broken


def reported(outcome: Outcome) -> str:
    return f"status {outcome.status}: {shorten_label(outcome.errors.strip())}"


def difference(run: Path, reference: Path) -> str:
    if not same_runs(run, reference):
        return f"{run.name}: other weights or another history than without signals"
    found, expected = (
        json.loads((it / "report" / "learning.json").read_text()) for it in (run, reference)
    )
    return "" if found["judged"] == expected["judged"] else f"{run.name}: judged otherwise"


def fuzz_kills(seed: int, kills: int, commands: Commands, whole: Whole, root: Path) -> list[str]:
    """Kill run after run; what went wrong."""
    chance = random.Random(f"kills {seed}")
    broken: list[str] = []
    done = number = 0
    while done < kills:
        lives, wrong = killed_run(commands, whole, root / f"{seed}-{number}", chance, kills - done)
        broken += [f"seed {seed}, run {number}: {line}" for line in wrong]
        done, number = done + lives, number + 1
    return broken
