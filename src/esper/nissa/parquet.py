"""Events as Parquet parts, one folder per event type: `RUN/events/<TYPE>/part-00001.parquet`.

A part appears whole under its name, so pyarrow and DuckDB can read while the run goes on. Until a
part has `rows_per_part` rows, a flush replaces it by a longer one: there are few files, however
often is flushed. A run that goes on adds parts to those that lie there. The columns are described
in `columns.py`. One writer per folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import parquet as pq

from esper.leyline.errors import EsperError
from esper.leyline.telemetry import TelemetryEvent, TelemetryEventType
from esper.nissa.columns import EVENTS_KEY, require_schema, rows_of, schema_of
from esper.nissa.writer_lock import lock_for_writing
from esper.storage.atomic import require_writable, write_atomic

PARTS: Final = "part-*.parquet"
ROWS_PER_PART: Final = 20_000


def folder_of(run: Path, kind: TelemetryEventType) -> Path:
    """Where the parts of an event type lie."""
    return run / "events" / kind.name


class ParquetSink:
    """Writes a part when it is full, and the rows so far at every flush."""

    def __init__(self, run: Path, rows_per_part: int = ROWS_PER_PART) -> None:
        if rows_per_part < 1:
            raise EsperError(f"ParquetSink rows_per_part={rows_per_part}: must be 1 or more")
        require_writable(run / "events" / "part", "ParquetSink")
        self._lock = os.open(run / "events", os.O_RDONLY | os.O_CLOEXEC)
        lock_for_writing(self._lock, run / "events")
        self._run = run
        self._rows_per_part = rows_per_part
        self._parts: dict[TelemetryEventType, _OpenPart] = {}

    def emit(self, event: TelemetryEvent) -> None:
        """Take one event; when this raises, it was not taken."""
        part = self._parts.get(event.type)
        if part is None:
            part = self._parts[event.type] = _OpenPart(self._run, event.type)
        part.append(event)
        if part.rows >= self._rows_per_part:
            try:
                part.write()
            except OSError:
                part.take_back()
                raise
            part.begin_next()

    def flush(self) -> None:
        """Write every part that has new rows; one that fails does not keep the others waiting."""
        failed: OSError | None = None
        for part in self._parts.values():
            try:
                part.write()
            except OSError as error:
                failed = error
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Write what waits and let other writers in, also when writing fails."""
        try:
            self.flush()
        finally:
            os.close(self._lock)


class _OpenPart:
    """The part of one event type that still grows."""

    def __init__(self, run: Path, kind: TelemetryEventType) -> None:
        self._kind = kind
        self._folder = folder_of(run, kind)
        self._folder.mkdir(parents=True, exist_ok=True)
        for left_over in self._folder.glob(".part-*.tmp"):  # of a process that was killed
            left_over.unlink()
        before = sorted(self._folder.glob(PARTS))
        self._number = int(before[-1].stem.rpartition("-")[2]) + 1 if before else 1
        self._events = _events_until(before[-1]) if before else 0
        self._written = schema_of(kind).empty_table()
        self._new: list[pa.RecordBatch] = []
        self.rows = 0

    def append(self, event: TelemetryEvent) -> None:
        batch = rows_of(event, self._events)
        self._new.append(batch)
        self._events += 1
        self.rows += batch.num_rows

    def take_back(self) -> None:
        """Undo the last `append`."""
        self.rows -= self._new.pop().num_rows
        self._events -= 1

    def write(self) -> None:
        """Put the part with its new rows in the place of the one without; nothing new: nothing."""
        if not self._new:
            return
        new = pa.Table.from_batches(self._new)
        table = pa.concat_tables([self._written, new]).combine_chunks()
        metadata = schema_of(self._kind).metadata | {EVENTS_KEY: str(self._events)}
        stream = pa.BufferOutputStream()
        pq.write_table(table.replace_schema_metadata(metadata), stream)
        path = self._folder / f"part-{self._number:05d}.parquet"
        write_atomic(path, stream.getvalue().to_pybytes())
        self._written = table
        self._new = []

    def begin_next(self) -> None:
        """Leave the part that is full."""
        self._number += 1
        self._written = schema_of(self._kind).empty_table()
        self.rows = 0


def _events_until(part: Path) -> int:
    """How many events of its type there are up to the end of a part."""
    with part.open("rb") as file:  # pyarrow opens no path that is not UTF-8
        schema = pq.read_schema(file)
    require_schema(schema, part)
    return int(schema.metadata[EVENTS_KEY])
