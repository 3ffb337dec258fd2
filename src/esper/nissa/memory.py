"""Sink that keeps events in memory, for tests and live displays."""

from __future__ import annotations

from collections import deque

from esper.leyline.telemetry import TelemetryEvent


class MemorySink:
    """Keeps the last `capacity` events (None: all of them)."""

    def __init__(self, capacity: int | None = None) -> None:
        self._events: deque[TelemetryEvent] = deque(maxlen=capacity)
        self.flushes = 0
        self.closed = False

    @property
    def events(self) -> list[TelemetryEvent]:
        """Copy of the events, oldest first; safe while the writer thread runs."""
        return list(self._events.copy())

    def emit(self, event: TelemetryEvent) -> None:
        """Append one event."""
        self._events.append(event)

    def flush(self) -> None:
        """No-op: nothing is buffered."""
        self.flushes += 1

    def close(self) -> None:
        """No-op: events stay readable."""
        self.closed = True
