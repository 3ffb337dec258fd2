"""The payload of an event in one short line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from esper.leyline.codec import Json
from esper.leyline.errors import shorten

MAX_TEXT_CHARS: Final = 240
_MAX_VALUE_CHARS: Final = 80


def payload_text(payload: Mapping[str, Json]) -> str:
    """Fields with one value; of lists their lengths, of objects their number of fields.

    >>> payload_text({"score": 0.123456789, "member_E": [0, 1], "head": None})
    'score 0.1235, member_E 2 values'
    """
    parts = [f"{name} {_text(value)}" for name, value in payload.items() if value is not None]
    return shorten(", ".join(parts), MAX_TEXT_CHARS)


def _text(value: Json) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return f"{len(value)} values"
    if isinstance(value, dict):
        return f"{len(value)} fields"
    return shorten(" ".join(str(value).split()), _MAX_VALUE_CHARS)
