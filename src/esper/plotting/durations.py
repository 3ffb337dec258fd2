"""Durations in words; `static/js/format.js` of the dashboard writes the same."""

from __future__ import annotations

import math


def duration(seconds: float | None) -> str:
    """A time in words, in its two largest units; a dash if it is not known.

    >>> duration(0.26), duration(75.2), duration(8000), duration(100_000), duration(None)
    ('0.3 s', '1 min 15 s', '2 h 13 min', '1 d 3 h', '-')
    """
    if seconds is None or not math.isfinite(seconds):
        return "-"
    seconds = max(0.0, seconds)
    if 0.05 <= seconds < 0.95:
        return f"0.{math.floor(seconds * 10 + 0.5)} s"
    whole = math.floor(seconds + 0.5)
    for unit, name, part, rest in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"),
                                   (60, "min", 1, "s")):  # fmt: skip
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // part} {rest}"
    return f"{whole} s"
