"""Rules of the heuristic from a TOML file, for `heuristic:RULES.toml`.

    trigger = "plateaued"
    seeds_at_once = 1
    style = "GATE"

The settings are those of `HeuristicConfig`, except `table`; those that a file does not name keep
their values.
"""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from esper.leyline.codec import from_json
from esper.leyline.errors import EsperError, parse_error_line, shown, unknown_name
from esper.tamiyo.heuristic import HeuristicConfig

NAMES = tuple(field.name for field in fields(HeuristicConfig) if field.name != "table")
"""Rules that a file may set."""


def read_rules(path: Path) -> HeuristicConfig:
    """Return the rules of a file."""
    where = f"rules {shown(str(path))}"
    try:
        entries = tomllib.loads(path.read_text())
    except OSError as error:
        raise EsperError(f"{where} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise EsperError(f"{where} is not TOML: nested too deeply") from None
    except ValueError as error:
        raise EsperError(f"{where} is not TOML: {parse_error_line(error)}") from None
    hints = get_type_hints(HeuristicConfig)
    rules: dict[str, Any] = {}
    for name, data in entries.items():
        if name not in NAMES:
            raise unknown_name("rule", name, NAMES, f"in {path}")
        rules[name] = from_json(hints[name], data, f"{where}: {name}")
    try:
        return HeuristicConfig(**rules)
    except EsperError as error:
        raise EsperError(f"{where}: {error}") from None
