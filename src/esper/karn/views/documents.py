"""Entries of JSON documents in run folders, without the classes that wrote them.

An entry that is missing or of another type counts as unknown. A file that is damaged raises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from esper.leyline.codec import MAX_INTEGER_BITS, Json
from esper.leyline.errors import EsperError, shown
from esper.leyline.statistics import Estimate
from esper.leyline.text import visible_in
from esper.storage.sealed_json import read_document, require_schema

Entries = Mapping[str, Json]
_NON_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

FileState = tuple[int, int, int]
NO_FILE: Final[FileState] = (0, 0, 0)


def file_state(path: Path) -> FileState:
    """Changes with a file or the entries of a folder; `NO_FILE` if there is none."""
    try:
        at = path.stat()
    except OSError:
        return NO_FILE
    return at.st_mtime_ns, at.st_size, at.st_ino


def read_entries(path: Path, schema: int | None = None) -> Entries:
    """Entries of a JSON file; raises in one line if it cannot be read or is of another schema."""
    document = read_document(path)
    if not isinstance(document, dict):
        raise EsperError(f"{path} is damaged: expected an object")
    if schema is not None:
        require_schema(path, document.get("schema"), schema)
    return checked(document, path)


def checked(document: dict[str, Json], where: object) -> Entries:
    """A document with `visible` text; raises if a number in it is out of range."""
    _require_numbers(document, where)
    return visible_in(document)


def _require_numbers(value: Json, where: object) -> None:
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        raise EsperError(f"{where} is damaged: {shown(value)} is too large a number")
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            _require_numbers(one, where)


def entries(document: Entries, name: str) -> Entries:
    """An object in a document; empty if there is none."""
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def listed(document: Entries, name: str) -> list[Json]:
    """A list in a document; empty if there is none."""
    found = document.get(name)
    return found if isinstance(found, list) else []


def objects(document: Entries, name: str) -> list[Entries]:
    """The objects of a list in a document."""
    return [one for one in listed(document, name) if isinstance(one, dict)]


def text(document: Entries, name: str) -> str:
    """A string in a document; empty if there is none."""
    found = document.get(name)
    return found if isinstance(found, str) else ""


def texts(document: Entries, name: str) -> tuple[str, ...]:
    """The strings of a list in a document."""
    return tuple(one for one in listed(document, name) if isinstance(one, str))


def number(document: Entries, name: str) -> float | None:
    """A number in a document; None if there is none."""
    return _number(document.get(name))


def real(document: Entries, name: str) -> float:
    """A number in a document; NaN if there is none."""
    found = number(document, name)
    return math.nan if found is None else found


def whole(document: Entries, name: str) -> int | None:
    """An integer in a document; None if there is none."""
    found = number(document, name)
    return None if found is None or not math.isfinite(found) else int(found)


def numbers(document: Entries, name: str) -> list[float]:
    """The numbers of a list in a document; other entries are NaN."""
    found = [_number(one) for one in listed(document, name)]
    return [math.nan if one is None else one for one in found]


def estimate(document: Entries) -> Estimate:
    """An estimate with its interval; NaN for what is not known."""
    return Estimate(*(real(document, name) for name in ("value", "low", "high")))


def _number(value: Json) -> float | None:
    if isinstance(value, str):
        return _NON_FINITE.get(value)
    return float(value) if isinstance(value, int | float) else None
