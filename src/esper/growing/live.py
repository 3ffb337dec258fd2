"""A line on a terminal that is drawn over and over, or plain lines elsewhere: one thread does both.

So something moves whatever the calling thread does. Lines that stay are printed above.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, TextIO

from esper.leyline.text import visible

TICK: Final = 0.25
"""Seconds between two looks, and between two drawings on a terminal."""
PLAIN_SECONDS: Final = 1.5
"""Seconds without a line after which there is one, where there is no terminal."""
_ERASE: Final = "\r\x1b[K"


class LiveLine:
    """The last line of a terminal between `start` and `stop`; the lines of a file or notebook."""

    def __init__(self, line: Callable[[int], str], stream: TextIO | None = None) -> None:
        """`line`: makes it for a number of columns, of which there are 0 outside a terminal; it is
        called in another thread.
        """
        self._line = line
        self._stream = sys.stderr if stream is None else stream
        self.encoding = getattr(self._stream, "encoding", None)
        self.is_terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn, self._printed = False, time.monotonic()
        self._lock, self._stopped = threading.RLock(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Draw from now on."""
        self._thread = threading.Thread(target=self._beat, name="progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Erase the line, and draw no more."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=4 * TICK)
        self.erase()

    def print(self, line: str) -> None:
        """Print a line that stays."""
        with self._lock:
            self.erase()
            self._write(f"{visible(line)}\n")

    def erase(self) -> None:
        """Leave the terminal to somebody else until the next drawing."""
        with self._lock:
            if self._drawn:
                self._write(_ERASE)
            self._drawn = False

    def _beat(self) -> None:
        while not self._stopped.wait(TICK):
            with self._lock:
                if not self._stopped.is_set():
                    self._draw()

    def _draw(self) -> None:
        if self.is_terminal:
            # The cursor goes back, so that whoever prints next writes over the line.
            self._write(f"{_ERASE}{visible(self._line(self._columns()))}\r")
            self._drawn = True
        elif time.monotonic() - self._printed >= PLAIN_SECONDS:
            self._write(f"{visible(self._line(0))}\n")

    def _write(self, text: str) -> None:
        # The terminal may be gone, or the stream closed: no reason to end a search.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()
        self._printed = time.monotonic()

    def _columns(self) -> int:
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError):
            columns = 0
        return (columns or shutil.get_terminal_size().columns) - 1


def bar(share: float, width: int, encoding: str | None = "utf-8") -> str:
    """A bar of a number of characters, filled to a share.

    >>> bar(0.5, 6), bar(1.5, 2), bar(0.25, 4, "latin-1")
    ('━━━───', '━━', '#---')
    """
    full, empty = "━─" if (encoding or "utf-8").lower().startswith("utf") else "#-"
    filled = round(width * min(1.0, max(0.0, share)))
    return full * filled + empty * (width - filled)
