"""Telemetry hub: a bounded queue and a writer thread, so that recording never blocks training.

`emit` queues an event, and the writer thread passes it to the sinks. A full queue drops the event
and counts it; a sink that raises is counted, and disabled after repeated failures. Emitters give up
ownership of the payload: its arrays must not be written to afterwards.

A forked child has no writer thread and shares the parent's files, so there the hub is a no-op.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from esper.leyline.errors import EsperError
from esper.leyline.protocols import SinkProtocol
from esper.leyline.telemetry import (
    QUEUE_SIZE,
    TelemetryConfig,
    TelemetryEvent,
    TelemetryEventType,
    TelemetryLevel,
)

MAX_FAILURES: Final = 5
"""Consecutive failures after which a sink is disabled."""
GATHER_SECONDS: Final = 0.05
"""How long the writer waits after the first event of a burst: the thread that emits a step's events
needs the interpreter to itself until it has queued the next work for the device."""
FLUSH_SECONDS: Final = 5.0
"""Longest time until a written event is flushed."""
CLOSE_SECONDS: Final = 30.0
"""Timeout for the sinks at the end of a run."""
STEP_EVENTS: Final = (TelemetryEventType.STEP_COMPLETED, TelemetryEventType.LAST_ACTION)
"""Events that `TelemetryConfig.step_events` records at every level except OFF."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _HubReport:
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


class TelemetryHub:
    """Passes events to sinks in the background; `emit` never blocks and never raises.

    >>> from esper.leyline.payloads import CheckpointLoaded
    >>> from esper.nissa.memory import MemorySink
    >>> sink = MemorySink()
    >>> with TelemetryHub([sink], TelemetryLevel.NORMAL) as hub:
    ...     hub.emit(TelemetryEvent.of(CheckpointLoaded("runs/a/round-7", rounds_done=7)))
    >>> len(sink.events), str(hub.report())
    (1, 'telemetry: all 1 events written')
    """

    def __init__(
        self,
        sinks: Sequence[SinkProtocol],
        level: TelemetryLevel,
        capacity: int = QUEUE_SIZE,
        always: Collection[TelemetryEventType] = (),
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        if capacity < 1:
            raise EsperError(f"TelemetryHub capacity={capacity}: must be 1 or more")
        self.level = level
        """May be changed at any time; takes effect at the next `emit`."""
        self._always = frozenset(always)
        self._capacity = capacity
        self._flush_seconds = flush_seconds
        self._feeds = [_SinkState(name, s) for name, s in zip(_names(sinks), sinks, strict=True)]
        # Re-entrant, so that a signal handler may emit while its own thread is inside `emit`.
        self._changed = threading.Condition(threading.RLock())
        self._queue: deque[TelemetryEvent] = deque()
        self._emitted = 0
        self._queued = 0
        self._delivered = 0
        self._flush_asked = 0
        self._drain_asked = 0
        self._flushed = 0
        self._after_close = 0
        self._dropped: Counter[str] = Counter()
        self._closing = False
        self._final: _HubReport | None = None
        self._pid = os.getpid()
        self._writer = threading.Thread(target=self._write, name="esper-telemetry", daemon=True)
        if self._feeds:
            self._writer.start()
            atexit.register(self.close)

    @classmethod
    def from_config(cls, sinks: Sequence[SinkProtocol], config: TelemetryConfig) -> TelemetryHub:
        """Build the hub described by `config`."""
        always = STEP_EVENTS if config.step_events else ()
        return cls(sinks, config.level, config.queue_size, always)

    def records(self, kind: TelemetryEventType) -> bool:
        """Whether events of this type are recorded; check before building an expensive payload."""
        if not self._feeds or self.level is TelemetryLevel.OFF:
            return False
        return kind.recorded_at(self.level) or kind in self._always

    def emit(self, event: TelemetryEvent) -> None:
        """Queue an event for every sink, or count why not."""
        if not self.records(event.type) or os.getpid() != self._pid:
            return
        with self._changed:
            if self._closing:
                self._after_close += 1
                return
            self._emitted += 1
            if len(self._queue) >= self._capacity:
                self._dropped[event.type.name] += 1
                return
            self._queued += 1
            self._queue.append(event)
            if len(self._queue) == 1 or self._half_full:
                self._changed.notify_all()

    @property
    def _half_full(self) -> bool:
        return 2 * len(self._queue) >= self._capacity

    def flush(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Wait until all events so far are written and flushed; False on timeout."""
        if not self._feeds or os.getpid() != self._pid:
            return True
        with self._changed:
            wanted = self._queued
            self._flush_asked = max(self._flush_asked, wanted)
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._flushed >= wanted, timeout)

    def drain(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Wait until all events so far were passed to every sink; False on timeout.

        Does not flush, so that sinks keep their own flush intervals as in a run.
        """
        if not self._feeds or os.getpid() != self._pid:
            return True
        with self._changed:
            wanted = self._drain_asked = self._queued
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._delivered >= wanted, timeout)

    def close(self, timeout: float = CLOSE_SECONDS) -> _HubReport:
        """Write pending events, close the sinks and report losses; a second call only reports."""
        if os.getpid() != self._pid or not self._feeds:
            return self.report()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._writer.join(timeout)
        atexit.unregister(self.close)
        with self._changed:
            self._queue.clear()  # timed out: a sink that wakes up later only closes
            if self._final is None:
                self._final = self._statistics()
                if not self._final.complete:
                    _log.warning("%s", self._final)
        return self.report()

    def report(self) -> _HubReport:
        """Return the statistics so far; after `close`, the final ones."""
        if os.getpid() != self._pid:
            return _HubReport(0, {}, {}, {}, (), 0)
        with self._changed:
            return self._statistics()

    def _statistics(self) -> _HubReport:
        written = {feed.name: feed.written for feed in self._feeds}
        return _HubReport(
            emitted=self._emitted,
            written=written if self._final is None else self._final.written,
            dropped=dict(self._dropped),
            failures={feed.name: feed.failures for feed in self._feeds},
            disabled=tuple(feed.name for feed in self._feeds if feed.disabled),
            after_close=self._after_close,
        )

    def __enter__(self) -> TelemetryHub:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # ---- the writer thread ----------------------------------------------------------------------

    def _write(self) -> None:
        """Pass events to the sinks until the hub closes (writer thread)."""
        taken = 0
        flush_at = time.monotonic() + self._flush_seconds
        while True:
            event = self._next(taken, flush_at)
            if event is not None:
                taken += 1
                for feed in self._feeds:
                    feed.emit(event)
                self._mark_delivered(taken)
            elif self._closing and not self._queue:
                break
            if taken > self._flushed and (self._flush_due(taken) or time.monotonic() >= flush_at):
                self._flush_feeds(taken)
            if time.monotonic() >= flush_at:
                flush_at = time.monotonic() + self._flush_seconds
        for feed in self._feeds:
            feed.close()
        self._mark_flushed(taken)

    def _next(self, taken: int, flush_at: float) -> TelemetryEvent | None:
        """Return the next event; None when it is time to flush or to close."""

        def something_to_do() -> bool:
            return bool(self._queue) or self._closing or self._flush_due(taken)

        def waited_for() -> bool:
            asked = max(self._flush_asked, self._drain_asked)
            return self._closing or asked > taken or self._half_full

        with self._changed:
            if not self._queue:
                self._changed.wait_for(something_to_do, max(0.0, flush_at - time.monotonic()))
                if self._queue:
                    self._changed.wait_for(waited_for, GATHER_SECONDS)
            return self._queue.popleft() if self._queue else None

    def _flush_due(self, taken: int) -> bool:
        """Whether a flush was requested and all events before it were passed on."""
        return self._flushed < self._flush_asked <= taken

    def _flush_feeds(self, taken: int) -> None:
        for feed in self._feeds:
            feed.flush()
        self._mark_flushed(taken)

    def _mark_delivered(self, taken: int) -> None:
        with self._changed:
            self._delivered = taken
            self._changed.notify_all()

    def _mark_flushed(self, taken: int) -> None:
        with self._changed:
            self._flushed = taken
            self._changed.notify_all()


class _SinkState:
    """A sink and its statistics; used only by the writer thread."""

    def __init__(self, name: str, sink: SinkProtocol) -> None:
        self.name = name
        self.written = 0
        self.failures = 0
        self.disabled = False
        self._sink = sink
        self._taken = 0
        # Counted separately: a buffering sink accepts events even while every flush fails.
        self._in_a_row = {"emit": 0, "flush": 0, "close": 0}

    def emit(self, event: TelemetryEvent) -> None:
        if not self.disabled and self._call("emit", lambda: self._sink.emit(event)):
            self._taken += 1

    def flush(self) -> None:
        if not self.disabled and self._call("flush", self._sink.flush):
            self.written = self._taken

    def close(self) -> None:
        if self._call("close", self._sink.close):
            self.written = self._taken

    def _call(self, what: str, call: Callable[[], None]) -> bool:
        """Call the sink and return whether it succeeded; it may be user code, so never raise."""
        try:
            call()
        except (Exception, SystemExit) as error:  # rich exits if stdout is a closed pipe
            self._failed(what, error)
            return False
        self._in_a_row[what] = 0
        return True

    def _failed(self, what: str, error: BaseException) -> None:
        self.failures += 1
        self._in_a_row[what] += 1
        reason = f"{type(error).__name__}: {error}".replace("\n", " ")
        if self.failures == 1:
            _log.warning("telemetry sink %s: %s failed (%s)", self.name, what, reason)
        if self._in_a_row[what] >= MAX_FAILURES and not self.disabled:
            self.disabled = True
            _log.warning(
                "telemetry sink %s disabled after %d failures in a row (%s)",
                self.name,
                MAX_FAILURES,
                reason,
            )


def _names(sinks: Sequence[SinkProtocol]) -> list[str]:
    """Return the class name of each sink, numbered from the second of a class on."""
    seen: Counter[str] = Counter()
    names = []
    for sink in sinks:
        kind = type(sink).__name__
        seen[kind] += 1
        names.append(kind if seen[kind] == 1 else f"{kind}-{seen[kind]}")
    return names


# ---- the hub of the process ---------------------------------------------------------------------

_hub = TelemetryHub((), TelemetryLevel.OFF)


def get_hub() -> TelemetryHub:
    """Return the hub of this process; a no-op hub until `set_hub` or `use_hub` is called."""
    return _hub


def set_hub(hub: TelemetryHub) -> TelemetryHub:
    """Replace the hub of this process; return the previous one, which stays open."""
    global _hub
    before, _hub = _hub, hub
    return before


@contextmanager
def use_hub(hub: TelemetryHub) -> Iterator[TelemetryHub]:
    """Use `hub` inside the block, then close it and restore the previous one."""
    before = set_hub(hub)
    try:
        yield hub
    finally:
        set_hub(before)
        hub.close()
