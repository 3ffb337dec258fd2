"""`Column` and `View`: what a query may ask for, with a sentence on each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a view."""

    name: str
    type: str
    """As DuckDB names it."""
    doc: str


@dataclass(frozen=True, slots=True)
class View:
    """One view."""

    name: str
    doc: str
    columns: tuple[Column, ...]


def sql_type(type_: Any) -> str:
    """Name of an Arrow type in DuckDB.

    >>> sql_type(pa.list_(pa.struct([("name", pa.string()), ("n", pa.int64())])))
    'STRUCT(name VARCHAR, n BIGINT)[]'
    """
    if pa.types.is_list(type_):
        return f"{sql_type(type_.value_type)}[]"
    if pa.types.is_struct(type_):
        return f"STRUCT({', '.join(f'{f.name} {sql_type(f.type)}' for f in type_)})"
    names = {
        pa.bool_(): "BOOLEAN",
        pa.string(): "VARCHAR",
        pa.float32(): "FLOAT",
        pa.float64(): "DOUBLE",
        pa.int8(): "TINYINT",
        pa.int32(): "INTEGER",
        pa.int64(): "BIGINT",
        pa.uint64(): "UBIGINT",
    }
    return names[type_]
