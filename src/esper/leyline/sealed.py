"""How a JSON document carries its own checksum, so that damage is noticed before it is believed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from esper.leyline.codec import Json

_SEAL: Final = "checksum"


def seal(document: Mapping[str, Json]) -> dict[str, Json]:
    """The document with its checksum.

    >>> is_sealed(seal({"round": 7})), is_sealed(seal({"round": 7}) | {"round": 8})
    (True, False)
    """
    return {**document, _SEAL: checksum_of(document)}


def is_sealed(document: Mapping[str, Json]) -> bool:
    """Whether the checksum in it is right."""
    return document.get(_SEAL) == checksum_of(document)


def checksum_of(document: Mapping[str, Json]) -> str:
    """Of everything but the checksum, in canonical form: sorted keys, no spaces, ASCII."""
    rest = {key: value for key, value in document.items() if key != _SEAL}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def parse_json(raw: bytes) -> Json:
    """JSON as it was written; ValueError for anything else, NaN as a number included."""
    try:
        data: Json = json.loads(raw.decode(), parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return data


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")
