"""How numbers are written down: strict JSON, in which what is not finite is null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping


def json_bytes(record: object) -> bytes:
    """The record as a file's content.

    >>> json_bytes({"rate": float("nan"), "n": [1, 2.5]})
    b'{\\n "rate": null,\\n "n": [\\n  1,\\n  2.5\\n ]\\n}\\n'
    """
    return (json.dumps(_finite(record), indent=1, allow_nan=False) + "\n").encode()


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
