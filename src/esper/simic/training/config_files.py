"""Reads `TrainingConfig` settings from TOML or JSON files, on top of a preset.

    rounds = 50
    [task]
    name = "digits_impaired"
    [ppo]
    epochs = 8
    learning_rate = { start = 2e-3, end = 5e-4, steps = 50 }

The sections are those of `TrainingConfig`; settings that a file does not name keep their values. An
unknown setting or a wrong type raises with the file's path. A schedule may be one number
(constant); "none" means None (TOML has no null). The output of `to_json(config)` is a valid file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from esper.leyline.codec import Json, from_json
from esper.leyline.errors import EsperError, parse_error_line, shown, unknown_name
from esper.leyline.limits import MAX_COUNT
from esper.simic.agent.schedule import Schedule
from esper.simic.training.config import TaskConfig, TrainingConfig, preset, preset_of_task
from esper.storage.sealed_json import parse_json, require_shallow, unseal

Entries = Mapping[str, Any]
C = TypeVar("C")

UNSET: Final = "none"
"""Spelling of None in a file."""


def read_entries(path: Path) -> Entries:
    """Parse a file into nested dicts; only its syntax is checked."""
    readers = {".toml": _parse_toml, ".json": _parse_json}
    if path.suffix not in readers:
        raise EsperError(f"config file {path}: its name must end in {' or '.join(readers)}")
    try:
        entries = readers[path.suffix](path.read_bytes())
    except OSError as error:
        raise EsperError(f"config file {path} cannot be read: {error.strerror}") from None
    except EsperError as error:
        raise EsperError(f"config file {path} {error}") from None
    except ValueError as error:  # from both parsers, and from text that is not UTF-8
        kind = path.suffix[1:].upper()
        raise EsperError(f"config file {path} is not {kind}: {parse_error_line(error)}") from None
    if not isinstance(entries, dict):
        raise EsperError(
            f"config file {path}: a {type(entries).__name__}, expected settings by name"
        )
    return entries


def _parse_json(raw: bytes) -> Json:
    """Parse JSON and remove the checksum that a run's config.json carries."""
    return unseal(parse_json(raw))


def _parse_toml(raw: bytes) -> dict[str, Any]:
    try:
        entries = tomllib.loads(raw.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    require_shallow(entries)
    return entries


def overlay(base: C, entries: Entries, where: object, section: str = "") -> C:
    """Return `base` updated with `entries` of file `where`; `section`: dotted path of `base`."""
    hints = get_type_hints(type(base))
    changes = {}
    for name, data in entries.items():
        if name not in hints:
            place = f"in [{section}] " if section else ""
            raise unknown_name("setting", name, hints, f"{place}of config file {where}")
        dotted = f"{section}.{name}" if section else name
        changes[name] = _value(hints[name], getattr(base, name), data, where, dotted)
    try:
        return replace(base, **changes)  # type: ignore[type-var]
    except EsperError as error:
        raise EsperError(f"config file {where}: {error}") from None


def _value(hint: Any, base: Any, data: object, where: object, dotted: str) -> object:
    """Convert one setting to the type of its field."""
    if hint is Schedule and isinstance(data, int | float) and not isinstance(data, bool):
        return overlay(Schedule(0.0), {"start": data}, where, dotted)
    if is_dataclass(hint):
        if not isinstance(data, dict):
            raise EsperError(f"config file {where}: {dotted} is {shown(data)}, expected a section")
        return overlay(base, data, where, dotted)
    optional = get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint)
    if optional and data == UNSET:
        return None
    return from_json(hint, data, f"config file {where}: {dotted}")


def resolve(
    preset_name: str = "",
    file: Path | None = None,
    rounds: int | None = None,
    task: str | None = None,
) -> TrainingConfig:
    """Return the settings before flags: a preset updated with a file.

    `rounds` and `task`: values given as flags. The task settings of a preset apply to its own task
    only. Without `preset_name`, the preset of the task is used.
    """
    entries = read_entries(file) if file is not None else {}
    named = entries.get("task", {})
    of_file = named.get("name") if isinstance(named, dict) else None
    wanted = task or (of_file if isinstance(of_file, str) else None)
    said = entries.get("rounds") if rounds is None else rounds
    over = said if type(said) is int and 0 < said <= MAX_COUNT else TrainingConfig().rounds
    base = preset(preset_name or preset_of_task(wanted or TaskConfig().name), over)
    if wanted is not None and wanted != base.task.name:
        base = replace(base, task=TaskConfig(wanted))
    return overlay(base, entries, file)
