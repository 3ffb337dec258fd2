"""`to_plain`: records of views as JSON; `thinned`: some of very many."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar

import numpy as np

from esper.leyline.codec import Json
from esper.leyline.errors import EsperError, shown

Point = TypeVar("Point")


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most `most` evenly spaced points, the first and the last one among them.

    >>> thinned(range(10), 4)
    [0, 3, 6, 9]
    """
    if len(points) <= most:
        return list(points)
    last = len(points) - 1
    return [points[round(i * last / (most - 1))] for i in range(most)]


def to_plain(value: object) -> Json:
    """Strict JSON of a record: NaN and infinities become null, enums their values.

    >>> to_plain((1, math.nan, {"a": (True,)}))
    [1, None, {'a': [True]}]
    """
    if isinstance(value, Enum):
        return to_plain(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, np.generic | np.ndarray):
        return to_plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    raise EsperError(f"{type(value).__name__} {shown(value)}: no JSON form")
