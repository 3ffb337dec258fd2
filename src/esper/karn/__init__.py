"""Karn: what people look at. Pictures, tables and progress, made from plain numbers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper.karn.growth_picture import Curve, LifeLines, draw_growth
    from esper.karn.intervals import Interval, t_interval
    from esper.karn.progress import GrowthProgress

_HOME = {
    "Curve": "growth_picture",
    "GrowthProgress": "progress",
    "Interval": "intervals",
    "LifeLines": "growth_picture",
    "draw_growth": "growth_picture",
    "t_interval": "intervals",
}

__all__ = [
    "Curve",
    "GrowthProgress",
    "Interval",
    "LifeLines",
    "draw_growth",
    "t_interval",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
