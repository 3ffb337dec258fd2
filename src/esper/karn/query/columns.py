"""`Column` and `View`: what a query may ask for, with a sentence on each."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass
from functools import cache
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


@cache
def field_docs(cls: Any) -> dict[str, str]:
    """Field -> the string below it, on one line; fields without one are missing."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            found[ast.unparse(field.target)] = " ".join(str(below.value.value).split())
    return found


def class_doc(cls: type) -> str:
    """First paragraph of a class's docstring, on one line."""
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
