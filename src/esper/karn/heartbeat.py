"""A line with a clock that a terminal shows whenever a command has printed nothing for a moment.

Covers what no progress display does: imports, set-up, reading data, judging, export, reports. The
line is erased before anything else is printed, and never drawn behind a text without line break.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Self

from esper.plotting.durations import duration

SILENCE: Final = 0.6
"""Seconds without output after which the line appears."""
TICK: Final = 0.3
"""Seconds between two looks."""
LOOKED_AT: Final = 64
"""Bytes at the end of an output that say where it leaves the cursor."""
STARTING: Final = "starting"
WORKING: Final = "working"
_ERASE: Final = b"\r\x1b[K"
_AT_LINE_START: Final = re.compile(rb"[\r\n](\x1b\[[0-9;?]*[A-Za-z])*$")
"""Text after which the cursor is in the first column; escape codes do not move it there."""

_phases: list[str] = []
"""What the command is doing, innermost last."""


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Say what the command does inside the block, should it be silent meanwhile."""
    _phases.append(name)
    try:
        yield
    finally:
        _phases.pop()


def current_phase() -> str:
    """What the command says it does; empty if it says nothing."""
    phases = _phases[-1:]  # another thread may end a phase meanwhile
    return phases[0] if phases else ""


class Heartbeat:
    """Context manager that keeps a terminal from looking dead.

    with Heartbeat("grow", write, columns=lambda: 80) as beat:
        beat.before_write(b"any other output")
    """

    def __init__(
        self,
        label: str,
        write: Callable[[bytes], object],
        columns: Callable[[], int],
        silence: float = SILENCE,
        tick: float = TICK,
    ) -> None:
        """`write`: to the terminal itself; `columns`: its width."""
        self._label, self._write, self._columns = label, write, columns
        self._silence, self._tick = silence, tick
        self._began = self._last = time.monotonic()
        self._shown, self._printed, self._at_line_start = False, False, True
        self._lock, self._stopped = threading.RLock(), threading.Event()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stopped.set()
        self._thread.join(timeout=2 * self._tick)
        with self._lock:
            self._erase()

    def before_write(self, data: bytes) -> None:
        """To be called before anything else is written to the terminal."""
        if os.getpid() != self._process:
            return  # a forked process: the thread, and whoever held the lock, are not here
        with self._lock:
            self._erase()
            self._printed, self._last = True, time.monotonic()
            self._at_line_start = _AT_LINE_START.search(data[-LOOKED_AT:]) is not None

    def _erase(self) -> None:
        if self._shown:
            self._write(_ERASE)
            self._shown = False

    def _beat(self) -> None:
        while not self._stopped.wait(self._tick):
            with self._lock:
                silent = time.monotonic() - self._last >= self._silence
                if silent and self._at_line_start and not self._stopped.is_set():
                    self._write(_ERASE + self._line().encode())
                    self._shown = True

    def _line(self) -> str:
        doing = current_phase() or (WORKING if self._printed else STARTING)
        clock = duration(time.monotonic() - self._began)
        return f"{self._label}: {doing}, {clock}"[: max(1, self._columns() - 1)]
