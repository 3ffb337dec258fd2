"""Table schema of each event type, for Parquet.

Every table begins with the event's own columns:

    schema_version  int32    version of leyline's event schema
    event           int64    number of the event within its type and run, from 0; joins its rows
    row             int64    index into the payload's array columns; 0 where it has none
    wall_time       double   seconds since 1970
    round           int64    null outside rounds
    step            int64    null for events of a round or a run
    env_id          int64    null if the payload has columns over members
    device          string   may be null

The payload's fields follow under their own names (prefixed with `payload_` on a name clash). A
payload with array fields becomes one row per element of their first axis, with scalars repeated;
further axes become lists. An event with empty arrays therefore has no row. Codes stay numbers, enum
fields are written by name, records become structs and tuples lists. NaN stays NaN; null means None.
Seeds are uint64, other integers int64. Text that is not UTF-8 (for example a path) is escaped.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa

from esper.leyline.errors import EsperError
from esper.leyline.payloads import UNSIGNED
from esper.leyline.telemetry import SCHEMA_VERSION, TelemetryEvent, TelemetryEventType
from esper.storage.atomic import printable

SCHEMA_KEY: Final = b"esper_schema_version"
TYPE_KEY: Final = b"esper_event_type"
EVENTS_KEY: Final = b"esper_events_done"
"""Events of the type up to the end of the part; the next part continues this count."""

_EVENT_COLUMNS: Final = (
    ("schema_version", pa.int32()),
    ("event", pa.int64()),
    ("row", pa.int64()),
    ("wall_time", pa.float64()),
    ("round", pa.int64()),
    ("step", pa.int64()),
    ("env_id", pa.int64()),
    ("device", pa.string()),
)
_SCALARS: Final = {
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    str: pa.string(),
}


@dataclass(frozen=True, slots=True)
class _PayloadColumn:
    """One field of a payload as a column."""

    name: str
    field: str
    type: Any
    """The arrow type."""
    is_array: bool


@cache
def payload_columns(kind: TelemetryEventType) -> tuple[_PayloadColumn, ...]:
    """Return the payload columns of an event type, in field order."""
    hints = get_type_hints(kind.payload_class)
    taken = {name for name, _ in _EVENT_COLUMNS}
    return tuple(
        _PayloadColumn(
            name=f"payload_{f.name}" if f.name in taken else f.name,
            field=f.name,
            type=pa.uint64() if f.metadata == UNSIGNED else arrow_type(f.name, hints[f.name]),
            is_array=get_origin(hints[f.name]) is np.ndarray,
        )
        for f in fields(kind.payload_class)
    )


@cache
def schema_of(kind: TelemetryEventType) -> pa.Schema:
    """Return the table schema of an event type; its metadata hold type and schema version."""
    columns = [pa.field(name, type_) for name, type_ in _EVENT_COLUMNS]
    columns += [pa.field(column.name, column.type) for column in payload_columns(kind)]
    return pa.schema(columns, {SCHEMA_KEY: str(SCHEMA_VERSION), TYPE_KEY: kind.name})


def require_columns(schema: pa.Schema, kind: TelemetryEventType, path: Path) -> None:
    """Raise unless a part has the columns of its event type, of this version of the schema."""
    version = (schema.metadata or {}).get(SCHEMA_KEY, b"none")
    if version != str(SCHEMA_VERSION).encode():
        raise EsperError(
            f"{path}: event schema version {version.decode(errors='replace')}, this Esper reads "
            f"version {SCHEMA_VERSION}; read the run with the release that wrote it"
        )
    wanted, types = schema_of(kind), dict(zip(schema.names, schema.types, strict=True))
    wrong = [one.name for one in wanted if types.get(one.name) != one.type]
    if wrong or len(schema) != len(wanted):
        what = f"column {wrong[0]} is missing or of another type" if wrong else "unknown columns"
        raise EsperError(f"{path}: not a file of {kind.name} events ({what})")


def rows_of(event: TelemetryEvent, number: int) -> pa.RecordBatch:
    """Return the rows of one event, the `number`-th of its type."""
    values = {c: getattr(event.payload, c.field) for c in payload_columns(event.type)}
    lengths = [len(value) for column, value in values.items() if column.is_array]
    count = lengths[0] if lengths else 1
    arrays = [
        pa.array(range(count) if name == "row" else [value] * count, type_)
        for (name, type_), value in zip(_EVENT_COLUMNS, _event_values(event, number), strict=True)
    ]
    arrays += [_column(column, value, count) for column, value in values.items()]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(event.type))


def _event_values(event: TelemetryEvent, number: int) -> tuple[int | float | str | None, ...]:
    """Return the values of `_EVENT_COLUMNS` in order; None for `row`."""
    place = (event.round_index, event.step, event.env_id, event.device)
    return (event.schema_version, number, None, event.wall_time, *place)


def _column(column: _PayloadColumn, value: Any, count: int) -> pa.Array:
    if not column.is_array:
        return pa.array([_plain(value)] * count, column.type)
    array = np.asarray(value)
    return pa.array(array if array.ndim == 1 else array.tolist(), column.type)


def _plain(value: Any) -> Any:
    """Convert to pyarrow's input: enums to names, records to dicts, tuples to lists."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return value


def arrow_type(name: str, hint: Any) -> Any:
    """The arrow type of a field by its type hint; `name`: its letters after `_` are axes.

    Pairs of different types are structs of `name` and `value`, other tuples are lists.
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (present,) = (arg for arg in args if arg is not NoneType)
        return arrow_type(name, present)
    if origin is np.ndarray:
        (scalar,) = get_args(args[1])
        element = pa.from_numpy_dtype(np.dtype(scalar))
        for _ in name.rpartition("_")[2][1:]:
            element = pa.list_(element)
        return element
    if origin is tuple and len({arg for arg in args if arg is not Ellipsis}) == 1:
        return pa.list_(arrow_type(name, args[0]))
    if origin is tuple and len(args) == 2:
        pair = zip(("name", "value"), args, strict=True)
        return pa.struct([(part, arrow_type(name, arg)) for part, arg in pair])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return pa.string()
    if isinstance(hint, type) and is_dataclass(hint):
        inner = get_type_hints(hint)
        return pa.struct([(f.name, arrow_type(f.name, inner[f.name])) for f in fields(hint)])
    if hint not in _SCALARS:
        raise EsperError(f"field {name}: no column type for {hint}")
    return _SCALARS[hint]
