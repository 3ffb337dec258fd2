"""Config files that are slightly wrong, or very: settings of every type, keys, sections, text.

Each mutation says what it did, and whether it is surely a mistake, which a command has to refuse.
`settings_cases.py` makes commands of them.
"""

from __future__ import annotations

import copy
import json
import math
import random
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final, get_args, get_origin, get_type_hints

from esper.leyline.codec import to_json
from esper.leyline.seeds import EVALUATION_SEEDS
from esper.simic.training.config import PRESETS, TrainingConfig
from esper.simic.training.schedules import Schedule

PAGE: Final = (Path(__file__).parents[1] / "docs" / "commands.md").read_text()
EVIL: Final = "evil.py"
"""A task file that says when it is run."""

Document = dict[str, Any]

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


# ---- values -------------------------------------------------------------------------------------

BIG: Final = (2**31, 2**63, 10**18, 10**30, 10**400)
NAMES: Final = (
    "", " ", "x" * 300, "y" * 5000, "ü漢字🙂", "a\nb", "tab\there", "none", "None", "nan", "../..",
    "/dev/null", "%s%n", "{0}", "\x1b[31mred", "cuda:99", "r0c0=norm", "norm", "digits_impaired",
    "synthetic", "3", "'", '"""', EVIL, f"{EVIL}:task", "auto",
)  # fmt: skip
WORDS: Final = (
    *NAMES, *(str(value) for value in BIG), "-1", "0", "-0.0", "1e309", "-1e309", "inf", "-inf",
    "1e-320", "3.5", "0x10", "1_0", "\uff11", "True", "[1, 2]", "{}", "\udcff", "=", "-", "--", "~",
    "/",
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
SEEDS: Final = (
    -1, 2**64, 2**64 - 1, 2**63, EVALUATION_SEEDS[0], EVALUATION_SEEDS[-1],
    *(EVALUATION_SEEDS[0] + bits * 2**64 for bits in (-1, 1, 3)), EVALUATION_SEEDS[0] + 2**32,
)  # fmt: skip
"""Some are those kept for evaluation, modulo a power of 2."""
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
        lambda: {"start": chance.choice((math.nan, 1e-3, 10**400)), "steps": -1},
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
    if (name in COUNTS and value < 1) or (name == "seed" and seed_is_wrong(value)):
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
    return f"{name} = {told(value)}", surely_wrong(name, value)


def name_a_file(chance: random.Random, document: Document) -> tuple[str, bool]:
    """A task file that only a command line may name: it is code."""
    value = chance.choice((EVIL, f"./{EVIL}", f"{EVIL}:task"))
    section, leaf = section_of(document, "task.name")
    section[leaf] = value
    return f"task.name = {value!r}", True


def set_seed(chance: random.Random, document: Document) -> tuple[str, bool]:
    document["seed"] = seed = chance.choice(SEEDS)
    return f"seed = {seed}", seed_is_wrong(seed)


def seed_is_wrong(seed: int) -> bool:
    """Training takes 64 bits, but for what is kept for evaluation."""
    return not 0 <= seed < 2**64 or seed in EVALUATION_SEEDS


def rename_key(chance: random.Random, document: Document) -> tuple[str, bool]:
    section, leaf = chance.choice(_entries(document))
    long, close = "x" * 5000, typo(chance, leaf)
    wrong = chance.choice(["", "ü", long, leaf.upper(), close, close, close])
    section[wrong] = section.pop(leaf)
    return f"{leaf} renamed to {told(wrong)}", wrong not in KNOWN


def remove_key(chance: random.Random, document: Document) -> tuple[str, bool]:
    section, leaf = chance.choice(_entries(document))
    del section[leaf]
    return f"{leaf} removed", False


def replace_section(chance: random.Random, document: Document) -> tuple[str, bool]:
    places = [(section, leaf) for section, leaf in _entries(document) if leaf in SECTIONS]
    section, leaf = chance.choice(places or [(document, "task")])
    section[leaf] = value = random_value(chance)
    return f"[{leaf}] = {told(value)}", not isinstance(value, dict)


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


def told(value: object) -> str:
    """A value in a few characters."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**50 else "a huge integer"
    return text if len(text) < 60 else f"{text[:50]}... ({len(text)} characters)"


DOCUMENT_MUTATIONS: Final = (
    *(set_value,) * 12, *(rename_key,) * 3, remove_key, replace_section, repeat_elsewhere,
    name_a_file, set_seed,
)  # fmt: skip

# ---- documents as text --------------------------------------------------------------------------


def as_json(value: Any) -> str:
    """JSON as Python writes it: NaN and Infinity as words, integers of any length."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(k)}: {as_json(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(as_json, value))}]"
    return json.dumps(value)


def as_toml(document: Document) -> str:
    """TOML: what is top-level first, then sections as inline tables."""
    return "".join(f"{_quoted(name)} = {_toml_value(value)}\n" for name, value in document.items())


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_quoted(k)} = {_toml_value(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
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
