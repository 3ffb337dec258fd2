"""What became of a run's events?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HubReport:
    """The hub's account: every event that was emitted is in one of these figures."""

    emitted: int
    """Events of the recorded level given to an open hub."""
    written: Mapping[str, int]
    """Per sink, events it took and confirmed by a later flush or its close; it may hold more."""
    dropped: Mapping[str, int]
    """Per event type, events the queue had no room for; no sink got them."""
    failures: Mapping[str, int]
    """Per sink, calls that raised."""
    set_aside: tuple[str, ...]
    """Sinks that failed too often in a row and got no further events."""
    after_close: int
    """Events emitted when the hub was closed already."""

    @property
    def events_dropped(self) -> int:
        """Events no sink got, for `RunFinished.events_dropped`."""
        return sum(self.dropped.values())

    @property
    def missing(self) -> dict[str, int]:
        """Per sink, queued events it has not confirmed: failed, set aside, or out of time."""
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
            why = f"{self.failures[name]} failures" + ", set aside" * (name in self.set_aside)
            parts.append(f"{name} lacks {count} ({why})")
        if self.after_close:
            parts.append(f"{self.after_close} came after close")
        return f"telemetry: of {self.emitted} events, {'; '.join(parts)}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
