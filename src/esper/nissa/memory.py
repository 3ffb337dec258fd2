"""Events kept in memory: for tests and live screens."""

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
        """What is kept, oldest first; a copy, safe to take while the writer goes on."""
        return list(self._events.copy())

    def emit(self, event: TelemetryEvent) -> None:
        """Keep one event."""
        self._events.append(event)

    def flush(self) -> None:
        """Nothing waits."""
        self.flushes += 1

    def close(self) -> None:
        """Events stay readable."""
        self.closed = True
