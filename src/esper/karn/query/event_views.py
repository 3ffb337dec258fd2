"""Views of events, one per type: names of columns, and how they follow from the stored ones.

A stored column is named by its field, `score_E`. Here it is `score`; a second axis is spelled out,
`chosen_OZ` is `chosen_by_stage`. Codes, slots and blueprints are names instead of numbers. The
fields of PPO metrics are columns of their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import IntEnum
from functools import cache
from typing import Any, Final, get_type_hints

from esper.karn.query.columns import Column, View, class_doc, field_docs, sql_type
from esper.karn.views.setup import NO_SETUP, RunSetup
from esper.leyline.actions import ActionHead, AlphaCurve, BlendStyle, LifecycleOp, VetoReason
from esper.leyline.arrays import Codes
from esper.leyline.payloads import PruneCause
from esper.leyline.signals import CounterfactualGap, PanicKind
from esper.leyline.stages import Gate, SeedStage
from esper.leyline.telemetry import TelemetryEventType
from esper.nissa.columns import payload_columns

_AXES: Final = {"S": "slot", "O": "op", "Z": "stage", "P": "part", "A": "head"}
"""Letter of a second axis -> its name."""
_ROW_ENUMS: Final[dict[str, type[IntEnum]]] = {"O": LifecycleOp, "A": ActionHead}
_CODES: Final[tuple[type[IntEnum], ...]] = (
    LifecycleOp, VetoReason, BlendStyle, AlphaCurve, SeedStage, Gate, PruneCause,
    CounterfactualGap, PanicKind,
)  # fmt: skip
"""Enums of columns of codes."""
_PLACE: Final = (
    Column("event", "BIGINT", "Number of the event within its type, from 0; joins its rows."),
    Column("time", "DOUBLE", "Seconds since 1970."),
    Column("round", "BIGINT", "From 0; null outside rounds."),
    Column("step", "BIGINT", "Step of the episode, from 0; null for events of a round or a run."),
)
_SHAPE: Final = re.compile(r"(.+)_([A-Z]+)")


@dataclass(frozen=True, slots=True)
class _EventColumn:
    """A column and the SQL that makes it."""

    column: Column
    sql: str
    """In terms of the stored columns; slots and blueprints as placeholders."""


def event_view(kind: TelemetryEventType) -> View:
    """The view of an event type."""
    columns = tuple(one.column for one in _columns(kind))
    return View(kind.name.lower(), class_doc(kind.payload_class), columns)


def select_events(kind: TelemetryEventType, source: str, setup: RunSetup | None) -> str:
    """SQL of the view, from a table with the stored columns."""
    names = setup or NO_SETUP
    parts = (f'{_named(one.sql, names)} AS "{one.column.name}"' for one in _columns(kind))
    return f"SELECT {', '.join(parts)} FROM {source}"


@cache
def _columns(kind: TelemetryEventType) -> tuple[_EventColumn, ...]:
    stored = dict(zip((one.name for one in _PLACE), ("event", "wall_time", "round", "step"),
                      strict=True))  # fmt: skip
    found = [_EventColumn(one, f'"{stored[one.name]}"') for one in _PLACE]
    payload: Any = kind.payload_class
    hints, docs = get_type_hints(payload), field_docs(payload)
    for one in payload_columns(kind):
        if is_dataclass(hints[one.field]):
            found += _struct_columns(hints[one.field], one.name, one.type)
        else:
            found.append(
                _column(one.field, one.name, one.type, hints[one.field], docs.get(one.field, ""))
            )
    return (*found[:4], *_row_column(kind, found[4:]), *found[4:])


def _struct_columns(cls: Any, stored: str, type_: Any) -> list[_EventColumn]:
    """A record within a payload: its fields are columns."""
    docs = field_docs(cls)
    return [
        _EventColumn(
            Column(f.name, sql_type(type_.field(f.name).type), docs.get(f.name, "")),
            f'"{stored}"."{f.name}"',
        )
        for f in fields(cls)
    ]


def _row_column(kind: TelemetryEventType, others: Sequence[_EventColumn]) -> list[_EventColumn]:
    """What the rows of an event are, where its payload does not say."""
    taken = {one.column.name for one in others}
    arrays = [one for one in payload_columns(kind) if one.is_array]
    if not arrays or not taken.isdisjoint(("member", "at_step")):
        return []
    letter = _split(arrays[0].field)[1][:1]
    if letter in _ROW_ENUMS:
        enum, name = _ROW_ENUMS[letter], _AXES[letter]
        return [_EventColumn(Column(name, "VARCHAR", f"`{enum.__name__}`."), _case('"row"', enum))]
    return [_EventColumn(Column("member", "BIGINT", "Index of the member."), '"row"')]


def _split(field: str) -> tuple[str, str]:
    """Name and shape letters of a field.

    >>> _split("score_E"), _split("slot_chosen")
    (('score', 'E'), ('slot_chosen', ''))
    """
    match = _SHAPE.fullmatch(field)
    return (match[1], match[2]) if match else (field, "")


def _column(field: str, stored: str, type_: Any, hint: Any, doc: str) -> _EventColumn:
    base, letters = _split(field)
    name = "_by_".join((base, *(_AXES[letter] for letter in letters[1:])))
    sql, names = f'"{stored}"', _names_of(base)
    if hint == Codes:
        return _EventColumn(Column(name, "VARCHAR", doc), _case(sql, _code_enum(doc)))
    if names and letters:
        nested = len(letters) > 1
        sql = f"[{names}[one + 1] FOR one IN {sql}]" if nested else f"{names}[{sql} + 1]"
        return _EventColumn(Column(name, "VARCHAR[]" if nested else "VARCHAR", doc), sql)
    return _EventColumn(Column(name, sql_type(type_), doc), sql)


def _code_enum(doc: str) -> type[IntEnum]:
    """The enum that the sentence on a column of codes names."""
    match = re.search(r"`(\w+)`", doc)
    assert match is not None, doc
    return next(enum for enum in _CODES if enum.__name__ == match[1])


def _case(sql: str, enum: type[IntEnum]) -> str:
    whens = " ".join(f"WHEN {one.value} THEN '{one.name}'" for one in enum)
    return f"CASE {sql} {whens} END"


def _names_of(base: str) -> str:
    """Placeholder for the names behind a column of indices; empty if it has none."""
    if base.endswith("slot"):
        return "{slots}"
    return "{blueprints}" if base == "blueprint" else ""


def _named(sql: str, setup: RunSetup) -> str:
    """Put the names in, in one pass: what looks like a placeholder in a name stays."""
    lists = {"{slots}": _list(setup.slots), "{blueprints}": _list(setup.blueprints)}
    return re.sub("{slots}|{blueprints}", lambda found: lists[found[0]], sql)


def _list(names: Sequence[str]) -> str:
    """A list of strings; an index outside of it is null.

    >>> _list(["r0c0", "it's"])
    "(['r0c0', 'it''s']::VARCHAR[])"
    """
    quoted = ", ".join("'" + name.replace("'", "''") + "'" for name in names)
    return f"([{quoted}]::VARCHAR[])"
