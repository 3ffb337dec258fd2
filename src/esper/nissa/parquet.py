"""Sink that writes Parquet parts, one folder per type: `RUN/events/<TYPE>/part-00001.parquet`.

Parts are written atomically, so pyarrow and DuckDB can read them during the run. Until a part has
`rows_per_part` rows, each flush replaces it by a longer one, which keeps the number of files small.
A resumed run adds new parts. Columns are described in `columns.py`. One writer per folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import parquet as pq

from esper.leyline.errors import EsperError
from esper.leyline.telemetry import TelemetryEvent, TelemetryEventType
from esper.nissa.columns import EVENTS_KEY, require_columns, rows_of, schema_of
from esper.storage.atomic import require_writable, write_atomic
from esper.storage.folder_lock import lock_for_writing

PARTS: Final = "part-*.parquet"
ROWS_PER_PART: Final = 20_000


def folder_of(run: Path, kind: TelemetryEventType) -> Path:
    """Return the folder of an event type's parts."""
    return run / "events" / kind.name


class ParquetSink:
    """Writes a part when it is full, and a partial one at every flush."""

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
        """Buffer one event; if this raises, the event was not taken."""
        part = self._parts.get(event.type)
        if part is None:
            part = self._parts[event.type] = _OpenPart(self._run, event.type)
        part.append(event)
        if part.rows >= self._rows_per_part:
            try:
                part.write()
            except OSError:
                part.undo_append()
                raise
            part.begin_next()

    def flush(self) -> None:
        """Write every part that has new rows; a failure of one does not stop the others."""
        failed: OSError | None = None
        for part in self._parts.values():
            try:
                part.write()
            except OSError as error:
                failed = error
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Flush and release the lock, even if writing fails."""
        try:
            self.flush()
        finally:
            os.close(self._lock)


class _OpenPart:
    """The growing part of one event type."""

    def __init__(self, run: Path, kind: TelemetryEventType) -> None:
        self._kind = kind
        self._folder = folder_of(run, kind)
        self._folder.mkdir(parents=True, exist_ok=True)
        for left_over in self._folder.glob(".part-*.tmp"):  # from a killed process
            left_over.unlink()
        before = sorted(self._folder.glob(PARTS))
        self._number = int(before[-1].stem.rpartition("-")[2]) + 1 if before else 1
        self._events = _events_until(before[-1], kind) if before else 0
        self._written = schema_of(kind).empty_table()
        self._new: list[pa.RecordBatch] = []
        self.rows = 0

    def append(self, event: TelemetryEvent) -> None:
        batch = rows_of(event, self._events)
        self._new.append(batch)
        self._events += 1
        self.rows += batch.num_rows

    def undo_append(self) -> None:
        """Undo the last `append`."""
        self.rows -= self._new.pop().num_rows
        self._events -= 1

    def write(self) -> None:
        """Replace the part by one with the new rows; no-op without new rows."""
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
        """Close the full part and start the next."""
        self._number += 1
        self._written = schema_of(self._kind).empty_table()
        self.rows = 0


def _events_until(part: Path, kind: TelemetryEventType) -> int:
    """Return the number of events of the type up to the end of a part."""
    with part.open("rb") as file:  # pyarrow cannot open paths that are not UTF-8
        schema = pq.read_schema(file)
    require_columns(schema, kind, part)
    return int(schema.metadata[EVENTS_KEY])
