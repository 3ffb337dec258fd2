"""Names of the variants of a model in a search: its width and depth, as multiples of its own."""

from __future__ import annotations

import re
from typing import Final

_NAME: Final = re.compile(r"(?:x(?P<width>[0-9.e+-]+))? ?(?:d(?P<depth>[0-9.e+-]+))?")


def variant_name(width: float, depth: float = 1.0) -> str:
    """Name of a variant; empty: the model as it was given.

    >>> variant_name(0.5), variant_name(1.41, 2), variant_name(1, 0.5), variant_name(1)
    ('x0.5', 'x1.41 d2', 'd0.5', '')
    """
    wide = f"x{width:g}" if width != 1 else ""
    deep = f"d{depth:g}" if depth != 1 else ""
    return " ".join(part for part in (wide, deep) if part)


def read_variant(name: str) -> tuple[float, float]:
    """Width and depth of a variant by its name; raises ValueError if it is none.

    >>> read_variant("x0.5"), read_variant("x1.41 d2"), read_variant("")
    ((0.5, 1.0), (1.41, 2.0), (1.0, 1.0))
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is no variant")
    return float(found["width"] or 1), float(found["depth"] or 1)


def describe_variant(name: str) -> str:
    """A variant in words; empty: the model as it was given.

    >>> describe_variant("x1.41 d2"), describe_variant("d0.5"), describe_variant("")
    ('width x1.41, depth x2', 'depth x0.5', '')
    """
    parts = name.split()
    return ", ".join(f"width {one}" if one[0] == "x" else f"depth x{one[1:]}" for one in parts)
