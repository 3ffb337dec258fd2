"""Every setting of a run as one flat table: `ppo.gamma`, `budget.params`, `versions.torch`.

A view of what the records say, of any kind of run; it knows no setting by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from esper.karn.views.damage import UNREADABLE, problem_of
from esper.karn.views.documents import Entries, objects, read_entries
from esper.karn.views.kinds import RunKind, kind_of
from esper.leyline.codec import Json
from esper.leyline.errors import shorten
from esper.storage import run_files as f

Setting = str | float | bool | None
MAX_SETTINGS: Final = 2000
"""Of a run; what is beyond them is not shown."""
MAX_VALUE_CHARS: Final = 160
"""Of a list or a text; longer ones are cut, and distinguished by a digest."""
MAX_NAME_CHARS: Final = 120
_NOT_SETTINGS: Final = frozenset(("schema", "checksum", "created", "name", "notes", "sessions"))
"""Entries of a record's top that say what it is, not how the run was set."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of one run."""

    values: Mapping[str, Setting]
    """By name, dots between the levels, in the order of the records."""
    problems: tuple[str, ...]
    """One line for each record that cannot be read."""


def settings_files(run: Path) -> tuple[Path, ...]:
    """The records that `read_settings` reads."""
    return tuple(run / name for name, _ in _RECORDS[kind_of(run)])


def read_settings(run: Path) -> RunSettings:
    """Settings of a run of any kind; of damaged records the problem."""
    values: dict[str, Setting] = {}
    problems = []
    for name, prefix in _RECORDS[kind_of(run)]:
        try:
            found = _settings_of(read_entries(run / name)) if (run / name).exists() else {}
            named = dict(_flat(found, prefix)) if found else {}
        except UNREADABLE as error:
            problems.append(problem_of(error))
        else:
            values |= named
    return RunSettings(dict(list(values.items())[:MAX_SETTINGS]), tuple(problems))


_RECORDS: Final[Mapping[RunKind, tuple[tuple[str, str], ...]]] = {
    RunKind.TRAIN: (
        (f.RUN, ""),
        (f.POLICY, ""),
        (f.CONFIG, ""),
        (f.SESSION, "session"),
        (f.RETENTION, "retention"),
    ),
    RunKind.GROW: ((f.GROW, ""),),
    RunKind.COMPARE: ((f.SETTINGS, ""),),
    RunKind.AUDIT: ((f.AUDIT, ""),),
}
"""(file, first part of its names); a later file wins."""


def _settings_of(document: Entries) -> dict[str, Json]:
    """The entries of a record that are settings; versions are those of the last session."""
    found = {name: value for name, value in document.items() if name not in _NOT_SETTINGS}
    sessions = objects(document, "sessions")
    last: Entries = sessions[-1] if sessions else {}
    return found | {name: last[name] for name in ("versions", "revision") if name in last}


def _flat(value: Json, name: str) -> Iterator[tuple[str, Setting]]:
    """(name, value) of everything in a value that has no parts with names."""
    parts = _pairs(value) if isinstance(value, list) else value
    if isinstance(parts, dict) and parts:
        for key, one in parts.items():
            yield from _flat(one, f"{name}.{key}" if name else key)
    elif name:
        yield shorten(name, MAX_NAME_CHARS), _shown(value)


def _pairs(value: list[Json]) -> dict[str, Json] | None:
    """A list of (name, value) pairs as an object; None if it is another list.

    >>> _pairs([["torch", "2.1"], ["numpy", "1.2"]]), _pairs([["a", 1], ["a", 2]]), _pairs([1])
    ({'torch': '2.1', 'numpy': '1.2'}, None, None)
    """
    found = {}
    for one in value:
        if not (isinstance(one, list) and len(one) == 2 and isinstance(one[0], str)):
            return None
        found[one[0]] = one[1]
    return found if len(found) == len(value) else None


def _shown(value: Json) -> Setting:
    """A value in one short text; what is cut is distinguished by a digest."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
        said = ", ".join(map(str, value)) or "none"
    else:
        said = value if isinstance(value, str) else json.dumps(value)
    if len(said) <= MAX_VALUE_CHARS:
        return said
    digest = hashlib.sha256(said.encode(errors="replace")).hexdigest()[:8]
    return f"{said[: MAX_VALUE_CHARS - 20]} ... ({digest})"
