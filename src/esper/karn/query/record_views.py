"""Views of records: what `esper.karn.views` reads, as tables.

An estimate is three columns: `score`, `score_low`, `score_high`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args, get_origin, get_type_hints

import pyarrow as pa

from esper.karn import views
from esper.karn.query.columns import Column, View, class_doc, field_docs, sql_type
from esper.leyline.statistics import Estimate
from esper.nissa.columns import arrow_type
from esper.storage.atomic import printable


@dataclass(frozen=True, slots=True)
class _RecordView:
    """A view, the class of its rows, and what reads them."""

    name: str
    row: type
    read: Callable[[Path], Sequence[Any]]


RECORD_VIEWS: Final = (
    _RecordView("rounds", views.RoundPoint, views.read_rounds),
    _RecordView("seeds", views.SeedLife, partial(views.read_seeds, first_round=0)),
    _RecordView("members", views.MemberState, views.read_members),
    _RecordView("networks", views.FrontierPoint, views.read_frontier),
    _RecordView("curves", views.NetworkCurve, views.read_curves),
    _RecordView("contenders", views.Contender, views.read_contenders),
)


def record_view(view: _RecordView) -> View:
    """Columns of a view."""
    docs = field_docs(view.row)
    columns = [
        Column(name, sql_type(type_), docs.get(field, "") if name == field else _END[part])
        for name, field, part, type_ in _flat(view.row)
    ]
    return View(view.name, class_doc(view.row), tuple(columns))


_END: Final = {"low": "Lower end of its interval.", "high": "Upper end of its interval."}


def record_table(view: _RecordView, run: Path | None) -> pa.Table:
    """The rows of a view of a run; None: no rows."""
    schema = pa.schema([(name, type_) for name, _, _, type_ in _flat(view.row)])
    records = () if run is None else view.read(run)
    return pa.Table.from_pylist([_row(one) for one in records], schema)


def _flat(cls: type) -> Iterator[tuple[str, str, str, Any]]:
    """(column, field, part of an estimate, Arrow type) of a class."""
    hints = get_type_hints(cls)
    for f in fields(cls):
        if hints[f.name] is Estimate:
            for part in ("value", "low", "high"):
                name = f.name if part == "value" else f"{f.name}_{part}"
                yield name, f.name, part, pa.float64()
        else:
            yield f.name, f.name, "", arrow_type(f.name, hints[f.name])


def _plain(value: Any, hint: Any) -> Any:
    """A value as Arrow takes it: records and pairs as objects, enums and paths as text."""
    args = get_args(hint)
    if value is None:
        return None
    if isinstance(hint, type) and is_dataclass(hint):
        return _row(value)
    if get_origin(hint) is tuple and args[-1] is Ellipsis:
        return [_plain(one, args[0]) for one in value]
    if get_origin(hint) is tuple:
        return {"name": _plain(value[0], args[0]), "value": _plain(value[1], args[1])}
    if isinstance(value, float) and math.isnan(value):
        return None  # as SQL has it: averages leave it out
    return printable(value) if isinstance(value, str) else value


def _row(record: Any) -> dict[str, Any]:
    hints = get_type_hints(type(record))
    return {
        name: _plain(getattr(getattr(record, field), part), float)
        if part
        else _plain(getattr(record, field), hints[field])
        for name, field, part, _ in _flat(type(record))
    }
