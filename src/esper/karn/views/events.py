"""The events of a training run as they were written: the last n, or all new ones since a cursor."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from esper.karn.views.damage import reader
from esper.karn.views.documents import Entries, checked, entries, real, text, whole
from esper.karn.views.tables import events_folder
from esper.leyline.codec import Json
from esper.storage.json_lines import end_of_lines, parse_line
from esper.storage.run_files import EVENTS

_BLOCK: Final = 1 << 16
_SPECIAL: Final = re.compile(rb"[\\\x7f-\xff]|[0-9]{30}")
"""What a line has that may hold characters to be made visible, or too large a number."""
MAX_READ_BYTES: Final = 8 << 20
"""Bytes that one `EventCursor.read` takes at most."""


@dataclass(frozen=True, slots=True)
class EventLine:
    """One event."""

    type: str
    """Name of a `TelemetryEventType`."""
    round: int | None
    """From 0; None outside rounds."""
    step: int | None
    """None for events of a round or a run."""
    time: float
    """Seconds since 1970."""
    payload: Mapping[str, Json]
    """Fields of the payload class, arrays as lists; NaN is the string "NaN"."""


@reader
def last_events(run: Path, n: int) -> tuple[EventLine, ...]:
    """The last `n` complete events of a run, oldest first; only the end of the file is read."""
    path = events_folder(run) / EVENTS
    if n < 1 or not path.exists():
        return ()
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        tail = b""
        while end and tail.count(b"\n") <= n:
            begin = max(0, end - max(_BLOCK, len(tail)))  # doubles, so that joining stays linear
            file.seek(begin)
            tail = file.read(end - begin) + tail
            end = begin
    lines = tail.split(b"\n")[:-1]  # what follows the last line break is incomplete
    return tuple(_event(line, f"{path}, near its end") for line in lines[-n:])


class EventCursor:
    """Reads the events of a run that are new since the last call, also while it is written.

    cursor = EventCursor(run)
    while True:
        for event in cursor.read(): ...
        time.sleep(1)

    An incomplete last line is left until it is complete; if its writer was killed, the resumed run
    replaces it.
    """

    def __init__(self, run: Path, from_end: bool = False) -> None:
        """`from_end`: begin with events that are written from now on."""
        self._path = events_folder(run) / EVENTS
        self._offset = 0
        """Bytes read so far, always whole lines."""
        self._lines = 0
        """Lines read so far, for messages."""
        if from_end and self._path.is_file():
            with self._path.open("rb") as file:
                self._offset = end_of_lines(file.fileno())

    def read(self, max_bytes: int = MAX_READ_BYTES) -> tuple[EventLine, ...]:
        """New complete events in order, of about `max_bytes`; empty if there are none."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return ()
        with file:
            if file.seek(0, os.SEEK_END) < self._offset:  # replaced by another file
                self._offset = self._lines = 0
            file.seek(self._offset)
            found = file.read(max_bytes)
            end = found.rfind(b"\n") + 1
            while not end and len(found) == max_bytes:  # a line longer than the limit
                more = file.read(max_bytes)
                found, max_bytes = found + more, len(found) + len(more)
                end = found.rfind(b"\n") + 1
                if not more:
                    break
        lines = found[:end].split(b"\n")[:-1]
        first = self._lines + 1
        events = [_event(line, f"{self._path} line {first + i}") for i, line in enumerate(lines)]
        self._offset += end
        self._lines += len(lines)
        return tuple(events)


def _event(line: bytes, where: str) -> EventLine:
    found = parse_line(line, where)
    return _event_line(checked(found, where) if _SPECIAL.search(line) else found)


def _event_line(found: Entries) -> EventLine:
    """An event from its JSON."""
    return EventLine(
        type=text(found, "type"),
        round=whole(found, "round_index"),
        step=whole(found, "step"),
        time=real(found, "wall_time"),
        payload=entries(found, "payload"),
    )
