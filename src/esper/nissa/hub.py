"""How do events leave training without ever holding it up?

`emit` puts an event into a bounded queue; one writer thread hands it to the sinks. A queue without
room drops the event and counts it; a sink that raises is counted, and set aside when it fails too
often in a row. An emitter gives its payload away: arrays must not be written to afterwards.

A forked child has no writer thread and shares the parent's files, so there the hub does nothing.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Final

from esper.leyline.errors import EsperError
from esper.leyline.protocols import SinkProtocol
from esper.leyline.telemetry import (
    TelemetryConfig,
    TelemetryEvent,
    TelemetryEventType,
    TelemetryLevel,
)
from esper.nissa.report import HubReport

CAPACITY: Final = TelemetryConfig().queue_size
"""Events that may wait for the writer."""
MAX_FAILURES: Final = 5
"""Failures in a row after which a sink is set aside."""
FLUSH_SECONDS: Final = 5.0
"""How long a written event may wait until others can read it."""
CLOSE_SECONDS: Final = 30.0
"""How long the end of a run waits for its sinks."""
STEP_EVENTS: Final = (TelemetryEventType.STEP_COMPLETED, TelemetryEventType.LAST_ACTION)
"""What `TelemetryConfig.step_events` records at every level but OFF."""
_log = logging.getLogger(__name__)


class TelemetryHub:
    """Takes events at any rate; `emit` neither waits for a sink nor passes on what it raises.

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
        capacity: int = CAPACITY,
        always: Collection[TelemetryEventType] = (),
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        if capacity < 1:
            raise EsperError(f"TelemetryHub capacity={capacity}: must be 1 or more")
        self.level = level
        """May be changed at any time; the next `emit` goes by it."""
        self._always = frozenset(always)
        self._capacity = capacity
        self._flush_seconds = flush_seconds
        self._feeds = [_Feed(name, s) for name, s in zip(_names(sinks), sinks, strict=True)]
        # Re-entrant, so that a signal handler may emit while its own thread is inside `emit`.
        self._changed = threading.Condition(threading.RLock())
        self._queue: deque[TelemetryEvent] = deque()
        self._emitted = 0
        self._queued = 0
        self._handed_on = 0
        self._flush_asked = 0
        self._flushed = 0
        self._after_close = 0
        self._dropped: Counter[str] = Counter()
        self._closing = False
        self._final: HubReport | None = None
        self._pid = os.getpid()
        self._writer = threading.Thread(target=self._write, name="esper-telemetry", daemon=True)
        if self._feeds:
            self._writer.start()
            atexit.register(self.close)

    @classmethod
    def from_config(cls, sinks: Sequence[SinkProtocol], config: TelemetryConfig) -> TelemetryHub:
        """The hub that records what `config` asks for."""
        always = STEP_EVENTS if config.step_events else ()
        return cls(sinks, config.level, config.queue_size, always)

    def records(self, kind: TelemetryEventType) -> bool:
        """Whether an event of this type would be recorded now; ask before building a costly one."""
        if not self._feeds or self.level is TelemetryLevel.OFF:
            return False
        return kind.recorded_at(self.level) or kind in self._always

    def emit(self, event: TelemetryEvent) -> None:
        """Queue one event for every sink, or count why not."""
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
            self._changed.notify_all()

    def flush(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Wait until what was emitted so far went through every sink; False: out of time."""
        if not self._feeds or os.getpid() != self._pid:
            return True
        with self._changed:
            wanted = self._queued
            self._flush_asked = max(self._flush_asked, wanted)
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._flushed >= wanted, timeout)

    def settle(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Wait until every sink was handed what was emitted so far; False: out of time.

        Nothing is flushed: sinks keep the rhythm they have in a run, in which nobody waits.
        """
        if not self._feeds or os.getpid() != self._pid:
            return True
        with self._changed:
            wanted = self._queued
            return self._changed.wait_for(lambda: self._handed_on >= wanted, timeout)

    def close(self, timeout: float = CLOSE_SECONDS) -> HubReport:
        """Write what waits, close the sinks, say what was lost; a second call only reports."""
        if os.getpid() != self._pid or not self._feeds:
            return self.report()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._writer.join(timeout)
        atexit.unregister(self.close)
        with self._changed:
            self._queue.clear()  # out of time: a sink that wakes up later closes, no more
            if self._final is None:
                self._final = self._account()
                if not self._final.complete:
                    _log.warning("%s", self._final)
        return self.report()

    def report(self) -> HubReport:
        """The account so far; after `close`, the final one."""
        if os.getpid() != self._pid:
            return HubReport(0, {}, {}, {}, (), 0)
        with self._changed:
            return self._account()

    def _account(self) -> HubReport:
        written = {feed.name: feed.written for feed in self._feeds}
        return HubReport(
            emitted=self._emitted,
            written=written if self._final is None else self._final.written,
            dropped=dict(self._dropped),
            failures={feed.name: feed.failures for feed in self._feeds},
            set_aside=tuple(feed.name for feed in self._feeds if feed.set_aside),
            after_close=self._after_close,
        )

    def __enter__(self) -> TelemetryHub:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- the writer thread ----------------------------------------------------------------------

    def _write(self) -> None:
        """Hand events on, one by one, until the hub closes."""
        taken = 0
        flush_at = time.monotonic() + self._flush_seconds
        while True:
            event = self._next(taken, flush_at)
            if event is not None:
                taken += 1
                for feed in self._feeds:
                    feed.emit(event)
                self._mark_handed_on(taken)
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
        """The next event; None when it is time to flush or to close."""

        def something_to_do() -> bool:
            return bool(self._queue) or self._closing or self._flush_due(taken)

        with self._changed:
            self._changed.wait_for(something_to_do, max(0.0, flush_at - time.monotonic()))
            return self._queue.popleft() if self._queue else None

    def _flush_due(self, taken: int) -> bool:
        """Whether someone waits for a flush and everything before it has been handed on."""
        return self._flushed < self._flush_asked <= taken

    def _flush_feeds(self, taken: int) -> None:
        for feed in self._feeds:
            feed.flush()
        self._mark_flushed(taken)

    def _mark_handed_on(self, taken: int) -> None:
        with self._changed:
            self._handed_on = taken
            self._changed.notify_all()

    def _mark_flushed(self, taken: int) -> None:
        with self._changed:
            self._flushed = taken
            self._changed.notify_all()


class _Feed:
    """One sink and what became of its events; used by the writer thread alone."""

    def __init__(self, name: str, sink: SinkProtocol) -> None:
        self.name = name
        self.written = 0
        self.failures = 0
        self.set_aside = False
        self._sink = sink
        self._taken = 0
        # Counted apart: a sink that buffers takes events happily while every flush fails.
        self._in_a_row = {"emit": 0, "flush": 0, "close": 0}

    def emit(self, event: TelemetryEvent) -> None:
        if not self.set_aside and self._call("emit", lambda: self._sink.emit(event)):
            self._taken += 1

    def flush(self) -> None:
        if not self.set_aside and self._call("flush", self._sink.flush):
            self.written = self._taken

    def close(self) -> None:
        if self._call("close", self._sink.close):
            self.written = self._taken

    def _call(self, what: str, call: Callable[[], None]) -> bool:
        """Whether the sink did it. A sink may be anyone's code: whatever it raises ends here."""
        try:
            call()
        except (Exception, SystemExit) as error:  # rich raises that where stdout is a closed pipe
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
        if self._in_a_row[what] >= MAX_FAILURES and not self.set_aside:
            self.set_aside = True
            _log.warning(
                "telemetry sink %s set aside after %d failures in a row (%s)",
                self.name,
                MAX_FAILURES,
                reason,
            )


def _names(sinks: Sequence[SinkProtocol]) -> list[str]:
    """The class name of each sink; the second of a kind gets its number."""
    seen: Counter[str] = Counter()
    names = []
    for sink in sinks:
        kind = type(sink).__name__
        seen[kind] += 1
        names.append(kind if seen[kind] == 1 else f"{kind}-{seen[kind]}")
    return names
