"""Seeded changes of run folders that no Esper wrote: values of JSON, JSONL and Parquet files.

Checksums are made right again, so that what reads a file gets to its values; plain damage of bytes
is among the changes, too.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet as pq

import damage_cases as bytes_of
from esper.storage.sealed_json import seal

TEXTS: Final = (
    "",
    "[/red]",
    "[bold",
    "<script>alert(1)</script>",
    "\x1b[2J\x1b]0;owned\x07",
    "\x9b31m\u202eevil\u2066",
    "line\nbreak\r\ttab\u2028",
    "NaN",
    "Infinity",
    "-Infinity",
    "\ud800",
    "{blueprints}%s%d",
    "../../../etc/passwd",
    "x" * 20_000,
    "9999-99-99 99:99:99",
)
VALUES: Final = (
    *TEXTS,
    *(None, True, False, 0, -1, 1 << 31, 1 << 63, -(1 << 63), 1 << 127, 10**400, -(10**400)),
    *(1e308, -1e308, 5e-324, 0.5, [], {}, [[]], [{}], {"": None}, [None, "a", 1e300], [-1] * 50),
)
"""Values that may stand anywhere."""
DAMAGE: Final = (bytes_of.flip_bit, bytes_of.flip_many, bytes_of.cut, bytes_of.empty,
                 bytes_of.delete, bytes_of.make_folder, bytes_of.append_garbage,
                 bytes_of.zero_block, bytes_of.delete_line)  # fmt: skip


def mutate(run: Path, seed: int) -> str:
    """Change one file of a run; says which and how."""
    chance = random.Random(f"folder {seed}")
    path = chance.choice(_files(run))
    if chance.random() < 0.2:
        what = chance.choice(DAMAGE)(chance, path, run, lambda: run)
    else:
        what = _CHANGES[path.suffix](chance, path)
    return f"seed {seed}: {path.relative_to(run)}: {what[:300]}"


def _files(run: Path) -> list[Path]:
    """Those that are read to show a run, the ones at the top more often."""
    found = [path for path in sorted(run.rglob("*")) if path.suffix in _CHANGES]
    found = [path for path in found if path.is_file()]
    return found + [path for path in found if path.parent == run] * 6


# ---- JSON --------------------------------------------------------------------------------------


def _change_json(chance: random.Random, path: Path) -> str:
    document = json.loads(path.read_bytes())
    what = _change_value(chance, document)
    if isinstance(document, dict) and "checksum" in document:
        del document["checksum"]
        document = seal(document)
    path.write_text(json.dumps(document, indent=1))
    return what


def _change_lines(chance: random.Random, path: Path) -> str:
    lines = path.read_text().splitlines()
    at = chance.choice((-1, chance.randrange(len(lines))))
    found = json.loads(lines[at])
    what = _change_value(chance, found)
    lines[at] = json.dumps(found)
    path.write_text("\n".join(lines) + "\n")
    return f"line {at}: {what}"


def _change_value(chance: random.Random, document: Any) -> str:
    """Change one place of a document, at the top as often as below."""
    places: list[tuple[Any, Any]] = []
    _collect(document, places, chance.choice((1, 2, 3, 9)))
    holder, name = chance.choice(places)
    if isinstance(holder, dict) and chance.random() < 0.15:
        del holder[name]
        return f"{name!r} removed"
    holder[name] = value = chance.choice(VALUES)
    return f"{name!r} = {str(value)[:60]!r}"


def _collect(value: Any, places: list[tuple[Any, Any]], depth: int) -> None:
    inner = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value[:20]) if isinstance(value, list) else inner
    for name, one in inner:
        if name != "checksum":
            places.append((value, name))
            if depth > 1:
                _collect(one, places, depth - 1)


# ---- Parquet -----------------------------------------------------------------------------------


def _change_table(chance: random.Random, path: Path) -> str:
    table = pq.read_table(path)
    at = chance.randrange(table.num_columns)
    field = table.schema.field(at)
    how = chance.choice((_nulls, _other_values, _other_values, _other_values, _other_type, _fewer))
    changed, what = how(chance, table, at, field)
    stream = io.BytesIO()
    pq.write_table(changed, stream)
    path.write_bytes(stream.getvalue())
    return f"{field.name}: {what}"


def _nulls(
    chance: random.Random, table: pa.Table, at: int, field: pa.Field
) -> tuple[pa.Table, str]:
    return table.set_column(at, field, pa.nulls(len(table), field.type)), "null"


def _other_values(
    chance: random.Random, table: pa.Table, at: int, field: pa.Field
) -> tuple[pa.Table, str]:
    value = chance.choice(
        (*VALUES, float("nan"), float("inf"), -float("inf"), [chance.choice(TEXTS)])
    )
    try:
        column = pa.array([value] * len(table), field.type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return _nulls(chance, table, at, field)
    return table.set_column(at, field, column), f"{value!r:.60}"


def _other_type(
    chance: random.Random, table: pa.Table, at: int, field: pa.Field
) -> tuple[pa.Table, str]:
    other = pa.field(field.name, chance.choice((pa.string(), pa.float16(), pa.int8(), pa.binary())))
    column = pa.nulls(len(table), other.type)
    return table.set_column(at, other, column), str(other.type)


def _fewer(
    chance: random.Random, table: pa.Table, at: int, field: pa.Field
) -> tuple[pa.Table, str]:
    if chance.random() < 0.5:
        return table.remove_column(at), "removed"
    return table.slice(chance.randrange(len(table) + 1)), "fewer rows"


_CHANGES: Final[dict[str, Callable[[random.Random, Path], str]]] = {
    ".json": _change_json,
    ".jsonl": _change_lines,
    ".parquet": _change_table,
}
