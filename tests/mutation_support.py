"""Settings and command lines that are slightly wrong, or very: made from valid ones by a seed.

A case starts from a command of docs/commands.md or a config file (the page's, a preset, a run's
config.json), made tiny, and is mutated one to three times. `--dry-run` stands at the end of every
command that has it. Where one mutation alone is surely a mistake, the command has to refuse it.
"""

from __future__ import annotations

import copy
import json
import math
import os
import random
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, get_args, get_origin, get_type_hints

from esper.leyline.codec import to_json
from esper.simic.training.config import PRESETS, TrainingConfig
from esper.simic.training.schedules import Schedule

PAGE: Final = (Path(__file__).parents[1] / "docs" / "commands.md").read_text()
CANARY: Final = "ran.txt"
EVIL: Final = "evil.py"
"""A task file that leaves `CANARY` behind when it is run."""
EVIL_TEXT: Final = f"open({CANARY!r}, 'w').close()\n"
FILE: Final = "mine"

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A command, and the files it finds."""

    seed: int
    words: tuple[str, ...]
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

TINY: Final[Document] = {
    "rounds": 2,
    "task": {"name": "synthetic", "episode_length": 3, "batch_size": 4, "batches_per_step": 1},
    "population": {"envs": 1, "device": "cpu"},
    "ppo": {
        "epochs": 1, "minibatches": 1,
        "network": {"width": 8, "attention_heads": 2, "embedding": 4},
    },
}  # fmt: skip
SMALL: Final = ("--episode-length", "5", "--batch-size", "4", "--batches-per-step", "1",
                "--device", "cpu")  # fmt: skip
SMALL_RUN: Final = (*SMALL, "--envs", "1")
SMALL_LEARNER: Final = (*SMALL_RUN, "--rounds", "2", "--epochs", "1", "--width", "8",
                        "--embedding", "4")  # fmt: skip


def merged(base: Document, over: Document) -> Document:
    """`base` with `over` on top, section by section."""
    both = dict(base)
    for name, value in over.items():
        inner = isinstance(value, dict) and isinstance(base.get(name), dict)
        both[name] = merged(base[name], value) if inner else value
    return both


def documents() -> list[Document]:
    """Valid config files, all of them tiny."""
    (shown,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    sizes = merged(TINY, {})
    sizes["task"] = {key: value for key, value in TINY["task"].items() if key != "name"}
    whole = [to_json(make(2)) for make in PRESETS.values()]
    whole = [it for it in whole if it["task"]["name"] == "digits_impaired"]
    return [TINY, merged(tomllib.loads(shown), sizes)] + [merged(it, sizes) for it in whole] + [
        merged(to_json(TrainingConfig()), TINY)
    ]  # fmt: skip


DOCUMENTS: Final = documents()


def page_commands() -> list[list[str]]:
    """The `esper` commands of the page, without the word esper."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    return [words[1:] for words in lines if words and words[0] == "esper"]


def flags_of(command: str) -> list[tuple[str, str]]:
    """(flag, form of its value) of a command, by its table on the page."""
    (table,) = re.findall(rf"<!-- {command} --help -->\n(.*?)<!-- end -->", PAGE, flags=re.DOTALL)
    found = re.findall(r"^\| `(--[a-z.-]+)(?:, --[a-z.-]+| ([^`]*))?` \|", table, flags=re.MULTILINE)
    return [(flag, form.replace("\\|", "|")) for flag, form in found]


TABLES: Final = {
    "ppo": flags_of("esper train ppo"),
    "train": flags_of("esper train fixed"),
    "eval": flags_of("esper eval"),
    "compare": flags_of("esper compare"),
    "tasks": [("--json", ""), ("--data-dir", "PATH")],
    "runs": [("--json", ""), ("--runs", "PATH")],
    "doctor": [("--task", "STR"), ("--envs", "INT"), ("--device", "STR")],
}

# ---- values -------------------------------------------------------------------------------------

BIG: Final = (2**31, 2**63, 10**18, 10**30, 10**400)
NAMES: Final = (
    "", " ", "x" * 300, "y" * 5000, "ü漢字🙂", "a\nb", "tab\there", "none", "None", "nan", "../..",
    "/dev/null", "%s%n", "{0}", "\x1b[31mred", "cuda:99", "r0c0=norm", "norm", "digits_impaired",
    "synthetic", "3", "'", '"""', EVIL, f"{EVIL}:task", "auto",
)  # fmt: skip
WORDS: Final = (
    *NAMES, *(str(value) for value in BIG), "-1", "0", "-0.0", "1e309", "-1e309", "inf", "-inf",
    "1e-320", "3.5", "0x10", "1_0", "１", "True", "[1, 2]", "{}", "\udcff", "=", "-", "--", "~", "/",
)  # fmt: skip
"""What may stand behind a flag. A word that is not UTF-8 is one of them."""


def deep(levels: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


COUNTED: Final = (*BIG, -1, 0, 1, 2, 3, 5, 10**9, -(10**30), 3.0, math.inf)
MEASURED: Final = (
    math.nan, math.inf, -math.inf, 10**400, -(10**400), 1e300, -1.0, 0, 0.0, 1e-320, 0.5, 1.0, 2,
)  # fmt: skip
HEADS: Final = ("STYLE", "TEMPO", "OP", "BLUEPRINT", "ALPHA_SPEED", "NOPE", "", 3)


def value_like(chance: random.Random, hint: Any) -> Any:
    """A value of about the type that a setting has: some valid, some at the far end."""
    kinds = set(get_args(hint)) or {hint}
    if get_origin(hint) is tuple:
        return _list_like(chance, kinds)
    if hint is Schedule:
        start, end = chance.choices(MEASURED, k=2)
        return chance.choice([start, {"start": start, "end": end, "steps": chance.choice(COUNTED)}])
    if kinds & {int, float}:
        return chance.choice(MEASURED if float in kinds else COUNTED)
    if hint is bool:
        return chance.choice((True, False, True, False, 0, "true"))
    if hint is str:
        return chance.choice(NAMES)
    return chance.choice(sorted(kinds, key=str))


def _list_like(chance: random.Random, kinds: set[Any]) -> list[Any]:
    count = chance.choice((0, 1, 2, 6, 8, 8))
    if float in kinds:
        return [chance.choice((*MEASURED, *(0.5,) * 30)) for _ in range(count)]
    if str in kinds:
        return [chance.choice((*NAMES, *("norm", "conv_light") * 20)) for _ in range(count)]
    indices = (*BIG, *(0, 1) * 8, -1, 99)
    return [[chance.choice(HEADS), chance.choice(indices)] for _ in range(min(count, 2))]


def random_value(chance: random.Random) -> Any:
    """Anything a config file may say."""
    return chance.choice([
        lambda: chance.choice(NAMES),
        lambda: chance.choice((*BIG, -1, 0, 1, 2, 3, -(10**30))),
        lambda: chance.choice((math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-320, 1e300, -1.5, 0.5)),
        lambda: chance.choice((True, False, None)),
        lambda: chance.choice(([], {}, [[]], [1, 2, 3], ["a", 1, None], {"a": {"b": {"c": 1}}})),
        lambda: chance.choice((deep(50), deep(400), list(range(1000)), ["z" * 5000])),
        lambda: [chance.choice((math.nan, 1.0, -1, 10**400)) for _ in range(8)],
        lambda: {"start": chance.choice((math.nan, 1e-3, 10**400)), "steps": chance.choice((-1, 3))},
    ])()  # fmt: skip


# ---- which values are surely wrong --------------------------------------------------------------

UNBOUNDED: Final = {"ppo.clip", "ppo.value_clip", "ppo.max_grad_norm", "ppo.target_kl"}
"""Limits: infinity is one that never holds."""
COUNTS: Final = {
    "rounds", "updates_per_rollout", "population.envs", "population.counterfactual_stride",
    "population.rollout_steps", "task.episode_length", "task.batch_size", "task.batches_per_step",
    "ppo.epochs", "ppo.minibatches", "ppo.network.width", "ppo.network.attention_heads",
    "ppo.network.embedding",
}  # fmt: skip


def leaves(config: type = TrainingConfig, section: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, type) of every setting; a schedule is one."""
    hints = get_type_hints(config)
    for field in fields(config):
        dotted, hint = f"{section}{field.name}", hints[field.name]
        if is_dataclass(hint) and hint is not Schedule:
            yield from leaves(hint, f"{dotted}.")
        else:
            yield dotted, hint


LEAVES: Final = dict(leaves())
KNOWN: Final = {part for name in LEAVES for part in name.split(".")} | {"start", "end", "steps"}
SECTIONS: Final = {part for name in LEAVES for part in name.split(".")[:-1]}


def surely_wrong(name: str, value: Any) -> bool:
    """Whether no run could be set to this; False where that is not sure."""
    hint = LEAVES[name]
    kinds = set(get_args(hint)) or {hint}
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if get_origin(hint) is tuple:
        return not isinstance(value, list) or (float in kinds and math.nan in value)
    if kinds & {int, float}:
        if value is None or value == "none":
            return False
        return not number or _wrong_number(name, value, float in kinds)
    if hint is Schedule:
        return not isinstance(value, dict) and (not number or _beyond(value))
    if hint is str or hint is bool:
        return not isinstance(value, hint)
    return number or isinstance(value, dict | bool) or value is None


def _wrong_number(name: str, value: float, real: bool) -> bool:
    if isinstance(value, float) and not real:
        return True
    if name in COUNTS and value < 1:
        return True
    if real and _beyond(value):
        return value != value or value < 0 or name not in UNBOUNDED
    return False


def _beyond(value: float) -> bool:
    """Not a number, or larger than any number."""
    return not abs(value) < 10**308


# ---- mutations of a document --------------------------------------------------------------------


def section_of(document: Document, dotted: str) -> tuple[Document, str]:
    """The section a setting stands in, made where it is missing, and its own name."""
    *path, leaf = dotted.split(".")
    for part in path:
        inner = document.get(part)
        if not isinstance(inner, dict):
            inner = document[part] = {}
        document = inner
    return document, leaf


def typo(chance: random.Random, word: str) -> str:
    """One character dropped, doubled, changed, or two swapped; it may come out as it was."""
    at = chance.randrange(len(word)) if word else 0
    return chance.choice([
        word[:at] + word[at + 1 :],
        word[:at] + word[at : at + 1] * 2 + word[at + 1 :],
        word[:at] + chance.choice("abcxyz_-é.") + word[at + 1 :],
        word[:at] + word[at + 1 : at + 2] + word[at : at + 1] + word[at + 2 :],
    ])  # fmt: skip


def set_value(chance: random.Random, document: Document) -> tuple[str, bool]:
    name = chance.choice(list(LEAVES))
    value = value_like(chance, LEAVES[name]) if chance.random() < 0.8 else random_value(chance)
    section, leaf = section_of(document, name)
    section[leaf] = value
    return f"{name} = {_told(value)}", surely_wrong(name, value)


def rename_key(chance: random.Random, document: Document) -> tuple[str, bool]:
    section, leaf = chance.choice(_entries(document))
    long, close = "x" * 5000, typo(chance, leaf)
    wrong = chance.choice(["", "ü", long, leaf.upper(), close, close, close])
    section[wrong] = section.pop(leaf)
    return f"{leaf} renamed to {_told(wrong)}", wrong not in KNOWN


def remove_key(chance: random.Random, document: Document) -> tuple[str, bool]:
    section, leaf = chance.choice(_entries(document))
    del section[leaf]
    return f"{leaf} removed", False


def replace_section(chance: random.Random, document: Document) -> tuple[str, bool]:
    places = [(section, leaf) for section, leaf in _entries(document) if leaf in SECTIONS]
    section, leaf = chance.choice(places or [(document, "task")])
    section[leaf] = value = random_value(chance)
    return f"[{leaf}] = {_told(value)}", not isinstance(value, dict)


def repeat_elsewhere(chance: random.Random, document: Document) -> tuple[str, bool]:
    """A setting in the section of another."""
    section, leaf = chance.choice(_entries(document))
    other, _ = chance.choice(_entries(document))
    other[leaf] = copy.deepcopy(section[leaf])
    return f"{leaf} repeated elsewhere", False


def _entries(section: Document) -> list[tuple[Document, str]]:
    """(section, name) of everything a document says."""
    found = [(section, name) for name in section]
    for value in section.values():
        if isinstance(value, dict):
            found += _entries(value)
    return found or [({"task": {}}, "task")]


def _told(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**50 else "a huge integer"
    return text if len(text) < 60 else f"{text[:50]}... ({len(text)} characters)"


DOCUMENT_MUTATIONS: Final = (
    *(set_value,) * 12, *(rename_key,) * 3, remove_key, replace_section, repeat_elsewhere,
)  # fmt: skip

# ---- documents as text --------------------------------------------------------------------------


def as_json(value: Any) -> str:
    """JSON as Python writes it: NaN and Infinity as words, integers of any length."""
    if isinstance(value, dict):
        return "{%s}" % ", ".join(f"{json.dumps(str(k))}: {as_json(v)}" for k, v in value.items())
    if isinstance(value, list):
        return "[%s]" % ", ".join(map(as_json, value))
    return json.dumps(value)


def as_toml(document: Document) -> str:
    """TOML: what is top-level first, then sections as inline tables."""
    return "".join(f"{_quoted(name)} = {_toml_value(value)}\n" for name, value in document.items())


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{%s}" % ", ".join(f"{_quoted(k)} = {_toml_value(v)}" for k, v in value.items())
    if isinstance(value, list):
        return "[%s]" % ", ".join(map(_toml_value, value))
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def harm_text(chance: random.Random, text: bytes) -> tuple[bytes, str]:
    """The file itself, not what it says."""
    at, lines = chance.randrange(len(text) + 1), text.splitlines(keepends=True)
    some = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 5)))
    return chance.choice([
        (text[:at], f"cut at byte {at}"),
        (text[:at] + some + text[at:], f"{some!r} inserted at byte {at}"),
        (text[:at] + some + text[at + len(some) :], f"{some!r} written over byte {at}"),
        (b"", "emptied"),
        (b"\xef\xbb\xbf" + text, "with a byte order mark"),
        (text.replace(b"\n", b"\r\n"), "lines of another system"),
        (text + text, "twice"),
        (text + b"[" * 20000, "20000 brackets behind it"),
        (b"[" * 20000, "brackets alone"),
        (chance.choice((b"null", b"[]", b"3", b'"x"', b" \n", b"\0\0\0\0")), "something else"),
        (text.replace(b"1", b"1" * 5000, 1), "an integer of 5000 digits"),
        (b"".join(chance.sample(lines, len(lines))), "lines shuffled"),
    ])  # fmt: skip


# ---- mutations of a command line ----------------------------------------------------------------

SIZES: Final = {
    "--rounds", "--seeds", "--envs", "--episode-length", "--batch-size", "--batches-per-step",
    "--evaluation-envs", "--width", "--embedding", "--epochs", "--updates-per-rollout",
    "--minibatches",
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

    def __init__(self, words: list[str], table: list[tuple[str, str]], real: bool) -> None:
        """`real`: it is carried out, so it must stay small."""
        self.words = words
        self.table = table
        self.real = real

    def places(self) -> list[int]:
        """Where flags stand."""
        return [at for at, word in enumerate(self.words) if word.startswith("--") and len(word) > 2]

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
    line.words += [f"{flag}={value}"] if joined else [flag, value]
    return f"{flag} {_told(value)}", _word_is_wrong(form, value, joined)


def _word_is_wrong(form: str, value: str, joined: bool) -> bool:
    """Whether a flag of that form surely cannot take this word."""
    if value.startswith("-") and not joined and not _is_number(value):
        return False  # a word of its own, then
    if form.endswith("INT") and "{None}" in form and value == "None":
        return False
    if form in ("INT", "{None}|INT"):
        return not _is_number(value) or "." in value or "e" in value or "inf" in value
    if form in ("FLOAT", "{None}|FLOAT"):
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
    at = chance.choice(line.places() or [len(line.words) - 1])
    before = line.words[at]
    line.words[at] = typo(chance, before)
    flags = {flag for flag, _ in line.table}
    spelled = line.words[at].replace("_", "-")
    sure = spelled.startswith("--") and not any(flag.startswith(spelled) for flag in flags)
    return f"{before} as {line.words[at]}", sure and before.startswith("--")


def drop_word(chance: random.Random, line: Line) -> tuple[str, bool]:
    at = chance.randrange(len(line.words))
    return f"without {_told(line.words.pop(at))}", False


def repeat_words(chance: random.Random, line: Line) -> tuple[str, bool]:
    at = chance.randrange(len(line.words))
    some = line.words[at : at + chance.choice((1, 2, 2, 2))]
    line.words += some
    return f"{some} twice", False


def replace_word(chance: random.Random, line: Line) -> tuple[str, bool]:
    at = chance.randrange(len(line.words))
    flag = line.words[at - 1] if at else ""
    before, line.words[at] = line.words[at], line.value_for(chance, flag)
    return f"{before} became {_told(line.words[at])}", False


def unknown_flag(chance: random.Random, line: Line) -> tuple[str, bool]:
    flag = chance.choice(["--lr", "--ünicode", "--" + "z" * 5000, "--task.name", "---", "-x", "--ppo"])
    line.words += [flag] + ["3"] * chance.randrange(2)
    return f"{_told(flag)} added", True


LINE_MUTATIONS: Final = (
    *(add_flag,) * 8, *(misspell_flag,) * 2, drop_word, repeat_words, replace_word, unknown_flag,
)  # fmt: skip

# ---- cases --------------------------------------------------------------------------------------


def make_case(seed: int) -> Case:
    """The case of a seed."""
    chance = random.Random(seed)
    return chance.choices([file_case, line_case], [11, 9])[0](chance, seed)


def file_case(chance: random.Random, seed: int) -> Case:
    """`train --config FILE --dry-run`, something wrong with the file."""
    document = copy.deepcopy(chance.choice(DOCUMENTS))
    count = chance.choices((0, 1, 2, 3), (1, 12, 4, 3))[0]
    done = [chance.choice(DOCUMENT_MUTATIONS)(chance, document) for _ in range(count)]
    kind = chance.choice(("json", "toml"))
    text = (as_json(document) if kind == "json" else as_toml(document)).encode("utf-8", "replace")
    mutations = [told for told, _ in done]
    if chance.random() < 0.2:
        text, told = harm_text(chance, text)
        mutations.append(told)
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
    words, table, real = _base_line(chance)
    line = Line(list(words), table, real)
    count = chance.choices((0, 1, 2, 3), (1, 12, 4, 3))[0]
    done = [chance.choice(LINE_MUTATIONS if line.words else (add_flag,))(chance, line)
            for _ in range(count)]  # fmt: skip
    files = {EVIL: EVIL_TEXT.encode(), f"{FILE}.toml": as_toml(TINY).encode()}
    told = tuple(text for text, _ in done)
    sure = len(done) == 1 and done[0][1]
    return Case(
        seed, tuple(line.words if real else [*line.words, "--dry-run"]), files, told,
        must_refuse=sure, with_run=any(word.startswith(("run", "--resume", "learned")) for word in words), writes=real,
    )  # fmt: skip


def _base_line(chance: random.Random) -> tuple[list[str], list[tuple[str, str]], bool]:
    """A valid command made small, its flags, and whether it is carried out."""
    words = chance.choice(BASE_LINES)
    if words[:2] == ["train", "ppo"]:
        small = () if "--resume" in words else SMALL_LEARNER
        return [*words, *small], TABLES["ppo"], False
    if words[0] == "train":
        return [*words, *SMALL_RUN], TABLES["train"], chance.random() < 0.3
    if words[0] == "eval":
        return [*words, *SMALL, "--envs", "1"], TABLES["eval"], True
    if words[0] == "compare":
        return [*words, *SMALL, "--seeds", "1", "--quiet"], TABLES["compare"], True
    return list(words), TABLES[words[0]], True


def _base_lines() -> list[list[str]]:
    """Commands of the page, the learner's as often as all others together."""
    found = [words for words in page_commands() if "cifar_baseline" not in words]  # seconds each
    learner = [words for words in found if words[:2] == ["train", "ppo"]]
    others = [words for words in found if words[:2] != ["train", "ppo"]]
    plain = ["train", "ppo", "--task", "synthetic"]
    return others + (learner + [plain] * 5) * (len(others) // (len(learner) + 5))


BASE_LINES: Final = _base_lines()


def printable(word: str) -> str:
    """A word as it can be printed, also where it is not UTF-8."""
    return os.fsencode(word).decode("utf-8", "backslashreplace")
