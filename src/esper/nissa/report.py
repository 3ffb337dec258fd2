"""Statistics of a hub: events written, dropped and lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HubReport:
    """Statistics of a hub; every emitted event is counted in one of these fields."""

    emitted: int
    """Events at the recorded level emitted to an open hub."""
    written: Mapping[str, int]
    """Per sink, events confirmed by a later flush or close; it may hold more."""
    dropped: Mapping[str, int]
    """Per event type, events dropped because the queue was full."""
    failures: Mapping[str, int]
    """Per sink, calls that raised."""
    disabled: tuple[str, ...]
    """Sinks disabled after repeated failures."""
    after_close: int
    """Events emitted after the hub was closed."""

    @property
    def events_dropped(self) -> int:
        """Events that reached no sink, for `RunFinished.events_dropped`."""
        return sum(self.dropped.values())

    @property
    def missing(self) -> dict[str, int]:
        """Per sink, queued events not confirmed: failed, disabled, or timed out."""
        queued = self.emitted - self.events_dropped
        return {name: queued - count for name, count in self.written.items() if count < queued}

    @property
    def complete(self) -> bool:
        """Whether every sink has every event."""
        return not (self.dropped or self.missing or self.after_close)

    def __str__(self) -> str:
        if self.complete:
            return f"telemetry: all {self.emitted} events written"
        parts = [f"{self.events_dropped} dropped, queue full ({_counts(self.dropped)})"]
        parts = parts if self.dropped else []
        for name, count in self.missing.items():
            why = f"{self.failures[name]} failures" + ", disabled" * (name in self.disabled)
            parts.append(f"{name} is missing {count} ({why})")
        if self.after_close:
            parts.append(f"{self.after_close} emitted after close")
        return f"telemetry: of {self.emitted} events, {'; '.join(parts)}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
