"""Nissa: what is recorded. The hub that takes events, the sinks that keep them, their readers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper.nissa.hub import TelemetryHub
    from esper.nissa.jsonl import JsonlSink
    from esper.nissa.memory import MemorySink
    from esper.nissa.parquet import ParquetSink
    from esper.nissa.shared import get_hub

_HOME = {
    "JsonlSink": "jsonl",
    "MemorySink": "memory",
    "ParquetSink": "parquet",
    "TelemetryHub": "hub",
    "get_hub": "shared",
}

__all__ = ["JsonlSink", "MemorySink", "ParquetSink", "TelemetryHub", "get_hub"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
