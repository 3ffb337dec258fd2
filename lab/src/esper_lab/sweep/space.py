"""The settings that a sweep searches: ranges and choices, from arguments or a file.

    learning-rate=1e-4..3e-3:log     a number, uniform in its logarithm
    gamma=0.9..0.999                 a number
    epochs=2..8                      a whole number
    width=32,64,128                  one of these; arguments as `esper train ppo --width` takes them

A file (TOML or JSON) has one entry each: "1e-4..3e-3:log" as above, or a list of choices.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from esper.leyline.errors import EsperError, shown
from esper.simic.training.config_files import read_entries

Value = float | int | str
FORMS: Final = "NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C"
_RANGE: Final = re.compile(r"(?P<low>[^.]*(?:\.(?!\.)[^.]*)?)\.\.(?P<high>[^:]+)(?P<log>:log)?")
_WHOLE: Final = re.compile(r"-?\d+")
FIXED: Final = ("task", "seed", "config", "preset")
"""Flags that all trials share."""


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, both included."""

    low: float
    high: float
    log: bool
    whole: bool

    @property
    def ends(self) -> tuple[Value, Value]:
        """Lowest and highest value."""
        return (int(self.low), int(self.high)) if self.whole else (self.low, self.high)


@dataclass(frozen=True, slots=True)
class Choices:
    """Values of a flag; one of several arguments has spaces between them."""

    values: tuple[str, ...]

    @property
    def ends(self) -> tuple[Value, ...]:
        """All values."""
        return self.values


Axis = Range | Choices
Space = Mapping[str, Axis]


def read_space(arguments: Sequence[str], file: Path | None) -> dict[str, Axis]:
    """The search space of a command line; raises if it is empty or names a flag twice."""
    found: dict[str, Axis] = {}
    entries = [] if file is None else _file_entries(file)
    for text in [*entries, *arguments]:
        name, equals, values = text.partition("=")
        name = name.strip().replace("_", "-")
        if not equals or not name:
            raise EsperError(f"setting {shown(text)}: write {FORMS}")
        if name in found:
            raise EsperError(f"setting {shown(text)}: {name} is given twice")
        if name in FIXED:
            raise EsperError(f"setting {shown(text)}: all trials share --{name}, give it once")
        found[name] = _axis(text, values.strip())
    if not found:
        raise EsperError(f"no settings to search: write {FORMS}, or give --space FILE")
    return found


def _file_entries(file: Path) -> list[str]:
    entries = []
    for name, value in read_entries(file).items():
        if isinstance(value, list):
            value = ",".join(map(str, value))
        if not isinstance(value, str):
            raise EsperError(f'{file}: {name} is {shown(value)}, use "LOW..HIGH" or a list')
        entries.append(f"{name}={value}")
    return entries


def _axis(text: str, values: str) -> Axis:
    if ".." in values and "," not in values:
        return _range(text, values)
    choices = tuple(part.strip() for part in values.split(","))
    if len(choices) < 2 or not all(choices) or len(set(choices)) < len(choices):
        raise EsperError(f"setting {shown(text)}: give two different values or more, or LOW..HIGH")
    return Choices(choices)


def _range(text: str, values: str) -> Range:
    parts = _RANGE.fullmatch(values)
    try:
        assert parts is not None
        low, high, log = float(parts["low"]), float(parts["high"]), parts["log"] is not None
    except (AssertionError, ValueError):
        raise EsperError(f"setting {shown(text)}: write {FORMS}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise EsperError(f"setting {shown(text)}: LOW must be below HIGH, both finite")
    if log and low <= 0:
        raise EsperError(f"setting {shown(text)}: a logarithmic range begins above 0")
    whole = all(_WHOLE.fullmatch(parts[end].strip()) for end in ("low", "high"))
    return Range(low, high, log, whole)


def flags_of(values: Mapping[str, Value]) -> list[str]:
    """The values as arguments of `esper train ppo`.

    >>> flags_of({"gamma": 0.9, "learning-rate": "1e-3 1e-4 run"})
    ['--gamma', '0.9', '--learning-rate', '1e-3', '1e-4', 'run']
    """
    return [
        word for name, value in values.items() for word in (f"--{name}", *str(value).split(" "))
    ]
