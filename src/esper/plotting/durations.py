"""Durations in words."""

from __future__ import annotations

import math


def format_duration(seconds: float) -> str:
    """Format as m:ss, or h:mm:ss from an hour on."""
    if not math.isfinite(seconds):
        return "-:--"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def duration_text(seconds: float | None) -> str:
    """A time in words.

    >>> duration_text(75.2), duration_text(8000), duration_text(None)
    ('1 min 15 s', '2 h 13 min', '-')
    """
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
