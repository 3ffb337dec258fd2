"""Nissa: what is recorded. The hub that takes events, the sinks that keep them, their readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.leyline.lazy import attach

if TYPE_CHECKING:
    from esper.nissa.hub import TelemetryHub as TelemetryHub
    from esper.nissa.jsonl import JsonlSink as JsonlSink
    from esper.nissa.memory import MemorySink as MemorySink
    from esper.nissa.parquet import ParquetSink as ParquetSink
    from esper.nissa.shared import get_hub as get_hub
else:
    __getattr__, __dir__, __all__ = attach(
        __name__,
        {
            ".hub": ("TelemetryHub",),
            ".jsonl": ("JsonlSink",),
            ".memory": ("MemorySink",),
            ".parquet": ("ParquetSink",),
            ".shared": ("get_hub",),
        },
    )
