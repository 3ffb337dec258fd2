"""JSON documents that carry their own checksum, and a strict JSON parser."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from esper.leyline.codec import Json, to_json
from esper.leyline.errors import EsperError, parse_error_line, shorten, shown

MAX_DEPTH: Final = 64
"""Maximum nesting of lists and objects; our documents have fewer than ten levels."""
_SEAL: Final = "checksum"
MAX_VALUE_CHARS: Final = 200
"""Maximum characters of a setting's value to print or record."""


def seal(document: Mapping[str, Json]) -> dict[str, Json]:
    """Return the document with its checksum added.

    >>> is_sealed(seal({"round": 7})), is_sealed(seal({"round": 7}) | {"round": 8})
    (True, False)
    """
    return {**document, _SEAL: checksum_of(document)}


def sealed_bytes(record: object) -> bytes:
    """A record as a JSON file with its checksum."""
    document = to_json(record)
    assert isinstance(document, dict)  # records encode to objects
    return (json.dumps(seal(document), indent=1) + "\n").encode()


def is_sealed(document: Mapping[str, Json]) -> bool:
    """Whether the checksum of the document is correct."""
    return document.get(_SEAL) == checksum_of(document)


def read_document(path: Path) -> Json:
    """Read a JSON file and verify its checksum; any problem raises in one line."""
    try:
        return unseal(parse_json(path.read_bytes()))
    except OSError as error:
        raise EsperError(f"cannot read {path}: {error.strerror}") from error
    except EsperError as error:
        raise EsperError(f"{path} {error}") from None
    except ValueError as error:
        raise EsperError(f"{path} is damaged, not JSON ({parse_error_line(error)})") from None


class OtherSchemaError(EsperError):
    """A file of another version of its format: it is not damaged, and must not be skipped."""


def require_schema(where: object, found: object, wanted: int) -> None:
    """Raise unless a file has the one version of its format that this Esper reads."""
    if type(found) is not int or found != wanted:
        raise OtherSchemaError(
            f"{where} has schema {shown(found)}, this Esper reads schema {wanted}: read it with "
            f"the release that wrote it"
        )


def unseal(document: Json) -> Json:
    """Remove the checksum from a document; raises if it is wrong.

    A document that somebody edited has none and passes unchanged.
    """
    if not isinstance(document, dict) or _SEAL not in document:
        return document
    if not is_sealed(document):
        raise EsperError(
            "does not match its checksum, it was damaged or edited (if you edited it, remove its "
            f'"{_SEAL}" line)'
        )
    return _without_seal(document)


def _without_seal(document: Mapping[str, Json]) -> dict[str, Json]:
    return {key: value for key, value in document.items() if key != _SEAL}


def checksum_of(document: Mapping[str, Json]) -> str:
    """SHA-256 of everything except the checksum, as canonical JSON (sorted keys, no spaces)."""
    text = json.dumps(_without_seal(document), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def parse_json(raw: bytes) -> Json:
    """Parse strict JSON; ValueError for anything else.

    Rejects NaN and infinities as numbers, duplicate keys and excessive nesting.


    >>> parse_json(b'{"round": 7}')
    {'round': 7}
    """
    try:
        data: Json = json.loads(
            raw.decode(),
            parse_constant=_reject_constant,
            parse_float=_finite,
            object_pairs_hook=_unique_entries,
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
        require_shallow(data)
    return data


def require_shallow(data: object) -> None:
    """Raise ValueError if `data` is nested more than `MAX_DEPTH` levels deep."""
    level = [data]
    for _ in range(MAX_DEPTH):
        lists = [list(it.values()) if isinstance(it, dict) else it for it in level]
        level = [inner for it in lists if isinstance(it, list) for inner in it]
        if not level:
            return
    raise ValueError(f"nested more than {MAX_DEPTH} levels deep")


def _reject_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{shorten(text)} is too large a number")
    return number


def _unique_entries(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{shown(twice)} appears twice")
    return entries


def json_bytes(record: object) -> bytes:
    """Encode a record as strict JSON; non-finite numbers become null.

    >>> json_bytes({"rate": float("nan"), "n": [1, 2.5]})
    b'{\\n "rate": null,\\n "n": [\\n  1,\\n  2.5\\n ]\\n}\\n'
    """
    return (json.dumps(_without_nan(record), indent=1, allow_nan=False) + "\n").encode()


def _without_nan(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _without_nan(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    return value


# ---- two documents ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """An entry with another value in each of two documents."""

    name: str
    """Dotted path."""
    before: Json
    now: Json

    def __str__(self) -> str:
        return f"{self.name}: {_printable(self.before)} -> {_printable(self.now)}"

    @property
    def refusal(self) -> str:
        """`name is X there and Y here`."""
        before, now = (shown(value, MAX_VALUE_CHARS) for value in (self.before, self.now))
        return f"{self.name} is {before} there and {now} here"


def differences(before: Json, now: Json, name: str = "") -> Iterator[Difference]:
    """Yield the differences of two documents, in the order of `now`; lists are single values."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in (*now, *(key for key in before if key not in now)):
            inner = f"{name}.{key}" if name else key
            yield from differences(before.get(key), now.get(key), inner)
    elif before != now:
        yield Difference(name, before, now)


def _printable(value: Json) -> str:
    text = str(value)
    return shorten(text if text.isprintable() else repr(text), MAX_VALUE_CHARS)
