"""Runs commands on run folders damaged by `damage_cases.py` and checks their behaviour."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

from damage_cases import Damage, damage
from fuzz_support import (
    Commands,
    Outcome,
    complaint_about,
    in_words,
    shorten_label,
    side_by_side,
)
from resume_support import same_runs
from settings_cases import SMALL, SMALL_LEARNER

DAMAGE_FUZZ = "tests/fuzz/test_damage.py"
RUN = Path("runs/RUN")
TRAIN = ("train", "ppo", "--task", "synthetic", *SMALL_LEARNER, "--envs", "2", "--quiet",
         "--keep", "4", "--evaluation-envs", "1")  # fmt: skip
WORDS = {
    "resume": ("train", "ppo", "--resume", str(RUN), "--rounds", "3", "--quiet"),
    "eval": ("eval", str(RUN), "--envs", "1"),
    "compare": ("compare", "wait", f"learned={RUN}", "--task", "synthetic", *SMALL,
                "--seeds", "1", "--quiet"),
    "runs": ("runs", "--json"),
}  # fmt: skip


class Sound:
    """A run that nothing happened to, and what each command makes of it, when it is asked for."""

    def __init__(self, commands: Commands, root: Path) -> None:
        self.commands = commands
        self.root = root
        self.outcomes: dict[str, Outcome] = {}

    @cached_property
    def run(self) -> Path:
        return trained(self.commands, self.root / "run")

    @cached_property
    def other(self) -> Path:
        """Another run, with other settings."""
        flags = ("--seed", "5", "--epochs", "2", "--clip", "0.3")
        return trained(self.commands, self.root / "other", *flags)

    def place(self, command: str) -> Path:
        """The folder in which a command was run."""
        place = self.root / command
        if command not in self.outcomes:
            copied(self.run, place)
            self.outcomes[command] = done = self.commands.run(WORDS[command], place)
            assert done.status == 0, done.errors
        return place


def trained(commands: Commands, place: Path, *flags: str) -> Path:
    place.mkdir()
    done = commands.run([*TRAIN, *flags], place)
    assert done.status == 0, done.errors
    (run,) = (place / "runs").iterdir()
    return run


def copied(run: Path, place: Path) -> Path:
    """A folder to run a command in, with a copy of the run."""
    shutil.copytree(run, place / RUN)
    return place


def checkpoint_digests(place: Path) -> Counter:
    """Content of every file of a checkpoint, wherever it lies."""
    files = [path for path in (place / RUN / "checkpoints").rglob("*") if path.is_file()]
    return Counter(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)


# ---- what may come of it ------------------------------------------------------------------------


def damage_complaint(
    case: Damage, outcome: Outcome, place: Path, before: Counter, sound: Sound
) -> str:
    """What is wrong with how a command dealt with the damage; empty: nothing."""
    if problem := complaint_about(outcome):
        return problem
    lost = before - checkpoint_digests(place)
    if lost:
        return f"{lost.total()} files of checkpoints were lost"
    if outcome.status == 2:
        return "" if case.command != "runs" else "one damaged run hides the list of all"
    judge = {"resume": resumed, "eval": evaluated, "compare": compared, "runs": listed}
    return judge[case.command](case, outcome, place, sound)


def says_what_differs(case: Damage, outcome: Outcome, sound: Sound) -> bool:
    """A line that the sound run does not have names the file, or a setting before and now."""
    sound.place(case.command)
    usual = {line for line in sound.outcomes[case.command].error_lines if " -> " in line}
    lines = [line for line in outcome.error_lines if line not in usual]
    name = Path(case.file).name
    return any(name in line or " -> " in line for line in lines)


def resumed(case: Damage, outcome: Outcome, place: Path, sound: Sound) -> str:
    if same_runs(place / RUN, sound.place("resume") / RUN):
        return ""
    if says_what_differs(case, outcome, sound):
        return ""
    return "resumed to other weights or another history, without a word"


def evaluated(case: Damage, outcome: Outcome, place: Path, sound: Sound) -> str:
    found, expected = (read(at / "out" / "eval_synthetic_judged.json")
                       for at in (place, sound.place("eval")))  # fmt: skip
    reported = (
        found["checkpoint"] != expected["checkpoint"] and found["checkpoint"] in outcome.output
    )
    if found["judged"] == expected["judged"] or reported or says_what_differs(case, outcome, sound):
        return ""
    return "judged with other figures, without a word"


def compared(case: Damage, outcome: Outcome, place: Path, sound: Sound) -> str:
    found, expected = (scores(at) for at in (place, sound.place("compare")))
    if found == expected or says_what_differs(case, outcome, sound):
        return ""
    return "compared with other figures, without a word"


def listed(case: Damage, outcome: Outcome, place: Path, sound: Sound) -> str:
    return "" if len(json.loads(outcome.output)) == 1 else "the run is not in the list"


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def scores(place: Path) -> list[Any]:
    files = sorted((place / "out" / "compare_synthetic" / "policies").iterdir())
    return [(path.name, read(path)["result"]["score_N"]) for path in files]


# ---- the fuzz -----------------------------------------------------------------------------------


def fuzz_damage(
    chosen: list[int], commands: Commands, sound: Sound, root: Path
) -> tuple[list[str], Counter]:
    """Breaks in words, and how often each command ended with each status."""
    broken, ends, before = [], Counter(), {}

    def cases():
        for seed in chosen:
            place = copied(sound.run, root / str(seed))
            case = damage(place / RUN, lambda: sound.other, seed)
            before[seed] = checkpoint_digests(place)
            yield case

    for case, outcome in side_by_side(
        cases(), lambda case: commands.start(WORDS[case.command], root / str(case.seed))
    ):
        place = root / str(case.seed)
        ends[case.command, outcome.status] += 1
        if problem := damage_complaint(case, outcome, place, before[case.seed], sound):
            broken.append(reported(case, outcome, problem))
        shutil.rmtree(place)
    return broken, ends


def reported(case: Damage, outcome: Outcome, problem: str) -> str:
    return "\n".join([
        f"seed {case.seed}: {problem}",
        f"  {case.file}: {case.what}",
        f"  esper {in_words(WORDS[case.command])}",
        f"  status {outcome.status}: {shorten_label(outcome.errors).strip()}",
    ])  # fmt: skip
