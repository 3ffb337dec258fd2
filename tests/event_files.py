"""Read recorded events, also during a run or after it was killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq

from esper.leyline.codec import read_enum, read_record
from esper.leyline.errors import EsperError
from esper.leyline.telemetry import TelemetryEvent, TelemetryEventType
from esper.nissa.columns import require_columns, schema_of
from esper.nissa.parquet import PARTS, folder_of
from esper.storage.json_lines import read_json_lines


def read_event(data: dict[str, Any]) -> TelemetryEvent:
    """Inverse of `TelemetryEvent.to_json_dict`."""
    kind = read_enum(TelemetryEventType, data.get("type"), "event.type")
    return read_record(TelemetryEvent, data, f"event {kind.name}", payload=kind.payload_class)


def read_jsonl(path: Path) -> Iterator[TelemetryEvent]:
    """Yield the events of a JSON Lines file in order; an incomplete last line is skipped."""
    if not path.is_file():
        raise EsperError(f"{path}: no such file of events")
    for where, data in read_json_lines(path):
        try:
            event = read_event(data)
        except EsperError as error:
            raise EsperError(f"{where}: {error}") from None
        yield event


def read_parquet(run: Path, kind: TelemetryEventType) -> pa.Table:
    """Return all rows of an event type so far (columns: `columns.py`); may be empty."""
    if not run.is_dir():
        raise EsperError(f"{run}: no such run folder")
    parts = [_read_part(path, kind) for path in sorted(folder_of(run, kind).glob(PARTS))]
    return pa.concat_tables([schema_of(kind).empty_table(), *parts])


def _read_part(path: Path, kind: TelemetryEventType) -> pa.Table:
    try:
        # pyarrow cannot open paths that are not UTF-8
        with path.open("rb") as raw, pq.ParquetFile(raw) as file:
            require_columns(file.schema_arrow, kind, path)
            table = file.read()
    except pa.ArrowInvalid as error:
        raise EsperError(f"{path}: not a Parquet file, or damaged ({error})") from None
    return table.cast(schema_of(kind))  # without pyarrow's own metadata
