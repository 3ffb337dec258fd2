"""Invalid commands, generated from valid ones by a seed.

A case starts from a command of docs/commands.md or a config file (the page's, a preset, a run's
config.json), made tiny, and is mutated one to three times. `--dry-run` stands at the end of every
command that has it. Where one mutation alone is surely a mistake, the command has to refuse it.
What a seed makes follows from the page's commands and flags and from the settings there are.
"""

from __future__ import annotations

import copy
import os
import random
import re
import shlex
from dataclasses import dataclass
from typing import Final

from command_tables import help_of
from mutation_support import (
    COUNTED,
    DOCUMENT_MUTATIONS,
    DOCUMENTS,
    EVIL,
    MEASURED,
    NAMES,
    PAGE,
    SEEDS,
    TINY,
    WORDS,
    as_json,
    as_toml,
    harm_text,
    reported,
    seed_is_wrong,
    typo,
)

CANARY: Final = "ran.txt"
EVIL_TEXT: Final = f"open({CANARY!r}, 'w').close()\n"
"""A task file that leaves `CANARY` behind when it is run."""
FILE: Final = "mine"
SMALL: Final = ("--episode-length", "5", "--batch-size", "4", "--batches-per-step", "1",
                "--device", "cpu")  # fmt: skip
SMALL_RUN: Final = (*SMALL, "--envs", "1")
SMALL_LEARNER: Final = (*SMALL_RUN, "--rounds", "2", "--epochs", "1", "--width", "8",
                        "--embedding", "4")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """A command, and the files it finds."""

    seed: int
    argv: tuple[str, ...]
    files: dict[str, bytes]
    """By name, in the folder it is run in."""
    mutations: tuple[str, ...]
    """What was done to it, in words."""
    must_refuse: bool
    """It is surely a mistake."""
    with_run: bool
    """It finds a run in runs/RUN."""
    writes: bool
    """It may leave files behind where it succeeds."""


# ---- what is valid ------------------------------------------------------------------------------


def page_commands() -> list[list[str]]:
    """The `esper` commands of the page, without the word esper."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    return [argv[1:] for argv in lines if argv and argv[0] == "esper"]


def flags_of(command: str) -> list[tuple[str, str]]:
    """(flag, form of its value) of a command, by its help."""
    settings = [one for topic in help_of(command).by_topic().values() for one in topic]
    parts = [one.form.partition(" ") for one in settings]
    return [(flag.rstrip(","), "" if flag.endswith(",") else form) for flag, _, form in parts]


TABLES: Final = {
    "ppo": flags_of("esper train ppo"),
    "train": flags_of("esper train fixed"),
    "eval": flags_of("esper eval"),
    "compare": flags_of("esper compare"),
    "tasks": [("--json", ""), ("--data-dir", "PATH")],
    "query": flags_of("esper query"),
    "runs": [("--json", ""), ("--runs", "PATH")],
    "doctor": [("--task", "STR"), ("--envs", "INT"), ("--device", "STR")],
    "grow": flags_of("esper grow"),
    "show": [("--runs", "PATH")],
    "export": [("--params", "INT"), ("--macs", "FLOAT")],
    "report": [("--out", "PATH")],
}

# ---- mutations of a command line ----------------------------------------------------------------

SIZES: Final = {
    "--rounds", "--seeds", "--envs", "--episode-length", "--batch-size", "--batches-per-step",
    "--evaluation-envs", "--width", "--embedding", "--epochs", "--updates-per-rollout",
    "--minibatches", "--contexts", "--topologies", "--hosts", "--grown", "--episodes",
    "--live-draws",
}  # fmt: skip
"""How much work it is. Commands without --dry-run are not asked for much."""
OUTSIDE: Final = ("/", "../..", "~")
"""Where commands without --dry-run must not write."""


def word_like(chance: random.Random, form: str) -> str:
    """A word of about the form that a flag has in --help."""
    choices = re.fullmatch(r"\{([A-Za-z0-9_,]+)\}(\|.*)?", form)
    if "INT" in form:
        return str(chance.choice(COUNTED))
    if "FLOAT" in form or "START" in form:
        return str(chance.choice(MEASURED))
    if choices and choices[1] != "None":
        return chance.choice(choices[1].split(","))
    return chance.choice(NAMES)


class Line:
    """A command line under mutation."""

    def __init__(self, argv: list[str], table: list[tuple[str, str]], real: bool) -> None:
        """`real`: it is carried out, so it must stay small."""
        self.argv = argv
        self.table = table
        self.real = real

    def places(self) -> list[int]:
        """Where flags stand."""
        return [at for at, word in enumerate(self.argv) if word.startswith("--") and len(word) > 2]

    def value_for(self, chance: random.Random, flag: str, form: str = "") -> str:
        while True:
            word = word_like(chance, form) if chance.random() < 0.7 else chance.choice(WORDS)
            too_much = flag in SIZES and word.strip().lstrip("+").isdigit()
            if not (self.real and (too_much or word in OUTSIDE)):
                return word


def add_flag(chance: random.Random, line: Line) -> tuple[str, bool]:
    flag, form = chance.choice(line.table)
    value = line.value_for(chance, flag, form)
    joined = chance.random() < 0.3
    line.argv += [f"{flag}={value}"] if joined else [flag, value]
    return f"{flag} {reported(value)}", _word_is_wrong(form, value, joined)


def add_seed(chance: random.Random, line: Line) -> tuple[str, bool]:
    seed = chance.choice(SEEDS)
    line.argv.append(f"--seed={seed}")
    known = any(flag == "--seed" for flag, _ in line.table)
    return f"--seed {seed}", not known or seed_is_wrong(seed)


def _word_is_wrong(form: str, value: str, joined: bool) -> bool:
    """Whether a flag of that form surely cannot take this word."""
    if value.startswith("-") and not joined and not _is_number(value):
        return False  # a word of its own, then
    if form.endswith("INT") and "{None}" in form and value == "None":
        return False
    if form in ("INT", "{None}|INT"):
        return not _is_number(value) or "." in value or "e" in value or "inf" in value
    if form in ("FLOAT", "{None}|FLOAT", "START [END UPDATES]"):
        return value != "None" and (not _is_number(value) or value == "nan")
    choices = re.fullmatch(r"\{([a-z0-9_,]+)\}", form)
    return bool(choices) and value not in choices[1].split(",")


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def misspell_flag(chance: random.Random, line: Line) -> tuple[str, bool]:
    at = chance.choice(line.places() or [len(line.argv) - 1])
    before = line.argv[at]
    line.argv[at] = typo(chance, before)
    flags = {flag for flag, _ in line.table}
    spelled = line.argv[at].replace("_", "-")
    sure = spelled.startswith("--") and not any(flag.startswith(spelled) for flag in flags)
    return f"{before} as {line.argv[at]}", sure and before.startswith("--")


def drop_word(chance: random.Random, line: Line) -> tuple[str, bool]:
    at = chance.randrange(len(line.argv))
    return f"without {reported(line.argv.pop(at))}", False


def repeat_words(chance: random.Random, line: Line) -> tuple[str, bool]:
    at = chance.randrange(len(line.argv))
    some = line.argv[at : at + chance.choice((1, 2, 2, 2))]
    line.argv += some
    return f"{some} twice", False


def replace_word(chance: random.Random, line: Line) -> tuple[str, bool]:
    at = chance.randrange(len(line.argv))
    flag = line.argv[at - 1] if at else ""
    before, line.argv[at] = line.argv[at], line.value_for(chance, flag)
    return f"{before} became {reported(line.argv[at])}", False


def unknown_flag(chance: random.Random, line: Line) -> tuple[str, bool]:
    flag = chance.choice(
        ["--lr", "--ünicode", "--" + "z" * 5000, "--task.name", "---", "-x", "--ppo"]
    )
    line.argv += [flag] + ["3"] * chance.randrange(2)
    return f"{reported(flag)} added", True


LINE_MUTATIONS: Final = (
    *(add_flag,) * 8, *(misspell_flag,) * 2, drop_word, repeat_words, replace_word, unknown_flag,
    add_seed,
)  # fmt: skip

# ---- cases --------------------------------------------------------------------------------------


def make_case(seed: int) -> Case:
    """The case of a seed."""
    chance = random.Random(f"settings {seed}")
    return chance.choices([file_case, line_case], [11, 9])[0](chance, seed)


def file_case(chance: random.Random, seed: int) -> Case:
    """`train --config FILE --dry-run`, something wrong with the file."""
    document = copy.deepcopy(chance.choice(DOCUMENTS))
    count = chance.choices((0, 1, 2, 3), (1, 12, 4, 3))[0]
    done = [chance.choice(DOCUMENT_MUTATIONS)(chance, document) for _ in range(count)]
    kind = chance.choice(("json", "toml"))
    text = (as_json(document) if kind == "json" else as_toml(document)).encode("utf-8", "replace")
    mutations = [text for text, _ in done]
    if chance.random() < 0.2:
        text, harm = harm_text(chance, text)
        mutations.append(harm)
    policy = chance.choices(("ppo", "wait", "heuristic"), (8, 1, 1))[0]
    name = f"{FILE}.{kind}" if chance.random() < 0.98 else chance.choice((FILE, "absent.toml", "."))
    return Case(
        seed,
        ("train", policy, "--config", name, "--dry-run"),
        {f"{FILE}.{kind}": text, FILE: text, EVIL: EVIL_TEXT.encode()},
        tuple(mutations),
        must_refuse=policy == "ppo" and len(mutations) == 1 and bool(done) and done[0][1],
        with_run=False,
        writes=False,
    )


def line_case(chance: random.Random, seed: int) -> Case:
    """A command of the page, something wrong with its words."""
    argv, table, real = _base_line(chance)
    line = Line(list(argv), table, real)
    count = chance.choices((0, 1, 2, 3), (1, 12, 4, 3))[0]
    done = [chance.choice(LINE_MUTATIONS if line.argv else (add_flag,))(chance, line)
            for _ in range(count)]  # fmt: skip
    files = {EVIL: EVIL_TEXT.encode(), f"{FILE}.toml": as_toml(TINY).encode()}
    mutations = tuple(text for text, _ in done)
    return Case(
        seed,
        tuple(line.argv if real else [*line.argv, "--dry-run"]),
        files,
        mutations,
        must_refuse=len(done) == 1 and done[0][1],
        with_run=any(word.startswith(("run", "--resume", "learned")) for word in argv),
        writes=real,
    )


def _base_line(chance: random.Random) -> tuple[list[str], list[tuple[str, str]], bool]:
    """A valid command made small, its flags, and whether it is carried out."""
    argv = chance.choice(BASE_LINES)
    if argv[:2] == ["train", "ppo"]:
        small = () if "--resume" in argv else SMALL_LEARNER
        return [*argv, *small], TABLES["ppo"], False
    if argv[0] == "train":
        return [*argv, *SMALL_RUN], TABLES["train"], chance.random() < 0.3
    if argv[0] == "eval":
        return [*argv, *SMALL, "--envs", "1"], TABLES["eval"], True
    if argv[0] == "compare":
        return [*argv, *SMALL, "--seeds", "1", "--quiet"], TABLES["compare"], True
    return list(argv), TABLES[argv[0]], True


def _base_lines() -> list[list[str]]:
    """Commands of the page, the learner's as often as all others together."""
    # Seconds each; minutes; until they are stopped.
    slow = {"cifar_baseline", "--demo", "serve", "tui"}
    found = [argv for argv in page_commands() if not slow & set(argv)]
    learner = [argv for argv in found if argv[:2] == ["train", "ppo"]]
    others = [argv for argv in found if argv[:2] != ["train", "ppo"]]
    plain = ["train", "ppo", "--task", "synthetic"]
    return others + (learner + [plain] * 5) * (len(others) // (len(learner) + 5))


BASE_LINES: Final = _base_lines()


def printable(word: str) -> str:
    """A word as it can be printed, also where it is not UTF-8."""
    return os.fsencode(word).decode("utf-8", "backslashreplace")
