"""An answer to a query as text: a table, CSV or JSON."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any, TextIO

from esper.karn.query.database import QueryResult
from esper.leyline.text import visible


def write_csv(result: QueryResult, out: TextIO) -> None:
    """All rows, with a header; lists and records as JSON, null as nothing."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(result.columns)
    for row in result.rows:
        writer.writerow([_cell(value) for value in row])


def write_json(result: QueryResult, out: TextIO) -> None:
    """All rows as a list of objects, one a line; NaN and infinities as null."""
    out.write("[")
    for number, row in enumerate(result.rows):
        record = dict(zip(result.columns, map(_plain, row), strict=True))
        out.write((",\n " if number else "\n ") + json.dumps(record, allow_nan=False))
    out.write("\n]\n")


def table_rows(result: QueryResult) -> Iterator[list[str]]:
    """Rows for a table, numbers rounded."""
    for row in result.rows:
        yield [_short(value) for value in row]


def _short(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return _cell(value)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple | dict):
        return json.dumps(_plain(value), allow_nan=False)
    return visible(str(value))


def _plain(value: Any) -> Any:
    """As JSON; column names that appear twice keep the last value."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    return value if value is None or isinstance(value, bool | int | str) else str(value)
