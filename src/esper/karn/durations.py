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
