"""Nissa: telemetry. The hub that queues events, sinks that write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.leyline.lazy import attach

if TYPE_CHECKING:
    from esper.nissa.hub import TelemetryHub as TelemetryHub
    from esper.nissa.hub import get_hub as get_hub
    from esper.nissa.jsonl import JsonlSink as JsonlSink
    from esper.nissa.memory import MemorySink as MemorySink
    from esper.nissa.parquet import ParquetSink as ParquetSink
else:
    __getattr__, __dir__, __all__ = attach(__name__)
