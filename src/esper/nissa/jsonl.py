"""Sink that appends events to a JSON Lines file: `events.jsonl` of a run of `esper train`.

scripts/train/recording.py opens it for a run; the hub (hub.py) passes it what the engine emits.

Only complete lines are written, a failed write is rolled back, and a line truncated by a crash is
cut off when the file is opened again, so the file is always readable.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from esper.leyline.errors import EsperError
from esper.leyline.telemetry import TelemetryEvent
from esper.storage.atomic import require_writable
from esper.storage.folder_lock import lock_for_writing
from esper.storage.json_lines import end_of_lines


class JsonlSink:
    """Appends to one file; flushes every `flush_events` events or `flush_seconds` seconds."""

    def __init__(self, path: Path, flush_events: int = 100, flush_seconds: float = 1.0) -> None:
        if flush_events < 1:
            raise EsperError(f"JsonlSink flush_events={flush_events}: must be 1 or more")
        require_writable(path, "JsonlSink")
        self._flush_events = flush_events
        self._flush_seconds = flush_seconds
        self._lines: list[bytes] = []
        self._flushed_at = time.monotonic()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        lock_for_writing(self._file, path)
        end = end_of_lines(self._file)
        if end < os.fstat(self._file).st_size:
            os.ftruncate(self._file, end)

    def emit(self, event: TelemetryEvent) -> None:
        """Buffer one event; if this raises, the event was not taken."""
        line = json.dumps(event.to_json_dict(), allow_nan=False, separators=(",", ":"))
        self._lines.append(line.encode() + b"\n")
        if self._due():
            try:
                self.flush()
            except OSError:
                self._lines.pop()
                raise

    def flush(self) -> None:
        """Write buffered lines; if this raises, they stay buffered and the file is unchanged."""
        self._flushed_at = time.monotonic()
        if self._lines:
            _append(self._file, b"".join(self._lines))
            self._lines.clear()

    def close(self) -> None:
        """Flush, sync and close the file, even if writing fails."""
        try:
            self.flush()
            os.fsync(self._file)
        finally:
            os.close(self._file)

    def _due(self) -> bool:
        waited = time.monotonic() - self._flushed_at
        return len(self._lines) >= self._flush_events or waited >= self._flush_seconds


def _append(file: int, content: bytes) -> None:
    """Write all of `content` or, on an error, nothing."""
    size = os.fstat(file).st_size
    rest = memoryview(content)
    try:
        while rest:
            rest = rest[os.write(file, rest) :]
    except OSError:
        os.ftruncate(file, size)
        raise
