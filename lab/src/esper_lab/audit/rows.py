"""Parquet files of an audit: one per context, or one for all; a row per host and topology.

    context, host, topology           int32           numbers, from 0
    seeds                             list<string>    blueprint of every slot, "" for an empty one
    budget, learning_rate, pixel_noise, label_noise   double   the context, repeated in every row
    groups, samples                   int64
    permuted                          bool
    accuracy, control, loss, train_loss, compute      list<float>   before the first step, and
                                                      after each
    test                              float
    contribution, alpha               list<float>     per slot, at the end
    rollbacks                         int32           by the governor

`AuditRecords` describes the measurements. The metadata of a file holds the version of this schema
and the identity of the audit. Pages have checksums.

Shape letters: H hosts, K topologies, T observations, S slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet as pq

from esper.leyline.arrays import ArrayStruct, Floats, Ints
from esper.leyline.errors import EsperError, shorten
from esper.storage.atomic import write_atomic
from esper.storage.run_files import AUDIT_SCHEMA as SCHEMA
from esper.storage.sealed_json import require_schema

SCHEMA_KEY: Final = b"esper_audit_schema"
AUDIT_KEY: Final = b"esper_audit"
"""Identity of the audit that a file belongs to."""
_FLOATS: Final = pa.list_(pa.float32())
_SMALLEST: Final = 19
"""Compression level of files that are written once and shipped."""
_CONTINUOUS: Final = ("loss", "train_loss")
"""Columns of numbers that hardly repeat: their bytes are compressed by significance."""


@dataclass(frozen=True, slots=True)
class DrawnContext:
    """A context as it was drawn."""

    context: int
    """Its number, from 0."""
    budget: float
    groups: int
    samples: int
    learning_rate: float
    pixel_noise: float
    permuted: bool
    label_noise: float


@dataclass(frozen=True, slots=True, eq=False)
class ContextRows(ArrayStruct):
    """What was measured in one context; see `AuditRecords`."""

    drawn: DrawnContext
    topology_K: Ints
    """Numbers of the topologies."""
    accuracy_HKT: Floats
    control_HKT: Floats
    loss_HKT: Floats
    train_loss_HKT: Floats
    compute_HKT: Floats
    test_HK: Floats
    contribution_HKS: Floats
    alpha_HKS: Floats
    """Share of each seed that is blended at the end."""
    rollbacks_HK: Ints


CURVES: Final = ("accuracy", "control", "loss", "train_loss", "compute")
SLOT_LISTS: Final = ("contribution", "alpha")
_DRAWN: Final = {
    "budget": pa.float64(),
    "groups": pa.int64(),
    "samples": pa.int64(),
    "learning_rate": pa.float64(),
    "pixel_noise": pa.float64(),
    "permuted": pa.bool_(),
    "label_noise": pa.float64(),
}
ROW_SCHEMA: Final = pa.schema(
    [
        *((name, pa.int32()) for name in ("context", "host", "topology")),
        ("seeds", pa.list_(pa.string())),
        *_DRAWN.items(),
        *((name, _FLOATS) for name in CURVES),
        ("test", pa.float32()),
        *((name, _FLOATS) for name in SLOT_LISTS),
        ("rollbacks", pa.int32()),
    ]
)


# ---- writing -----------------------------------------------------------------------------------


def write_rows(
    path: Path, rows: ContextRows, topologies: Sequence[Sequence[str]], audit: str
) -> None:
    """Write the file of a context whole or not at all; `audit`: identity of the audit."""
    write_atomic(path, _parquet(_table(rows, topologies), audit))


def packed_bytes(
    contexts: Sequence[ContextRows], topologies: Sequence[Sequence[str]], audit: str
) -> bytes:
    """One small file for several contexts; equal rows give equal bytes."""
    table = pa.concat_tables([_table(rows, topologies) for rows in contexts])
    small = {
        "compression_level": _SMALLEST,
        "use_dictionary": [name for name in table.column_names if name not in _CONTINUOUS],
        "use_byte_stream_split": [f"{name}.list.element" for name in _CONTINUOUS],
        "row_group_size": max(1, len(table)),
    }
    return _parquet(table, audit, **small)


def _parquet(table: pa.Table, audit: str, **options: Any) -> bytes:
    stream = pa.BufferOutputStream()
    metadata = {SCHEMA_KEY: str(SCHEMA), AUDIT_KEY: audit}
    pq.write_table(
        table.replace_schema_metadata(metadata),
        stream,
        compression="zstd",
        write_page_checksum=True,
        **options,
    )
    content: bytes = stream.getvalue().to_pybytes()
    return content


def _table(rows: ContextRows, topologies: Sequence[Sequence[str]]) -> pa.Table:
    hosts, count = rows.test_HK.shape
    number = hosts * count
    columns: dict[str, Any] = {
        "context": np.full(number, rows.drawn.context),
        "host": np.repeat(np.arange(hosts), count),
        "topology": np.tile(rows.topology_K, hosts),
        "seeds": [list(topologies[at]) for at in rows.topology_K] * hosts,
    }
    columns |= {name: np.full(number, getattr(rows.drawn, name)) for name in _DRAWN}
    columns |= {name: _lists(getattr(rows, f"{name}_HKT")) for name in CURVES}
    columns |= {name: _lists(getattr(rows, f"{name}_HKS")) for name in SLOT_LISTS}
    columns |= {"test": rows.test_HK.ravel(), "rollbacks": rows.rollbacks_HK.ravel()}
    arrays = [pa.array(columns[f.name], f.type) for f in ROW_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=ROW_SCHEMA)


def _lists(values: Floats) -> pa.Array:
    """The last axis as lists, in C order of the others."""
    length = values.shape[-1]
    offsets = np.arange(values.size // max(1, length) + 1, dtype=np.int32) * length
    flat = pa.array(values.ravel().astype(np.float32, copy=False))
    return pa.ListArray.from_arrays(pa.array(offsets), flat)


# ---- reading -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowShape:
    """What the file of a context has to hold."""

    context: int
    hosts: int
    topologies: tuple[int, ...]
    """Numbers of the topologies."""
    steps: int
    slots: int
    audit: str
    """Identity of the audit."""


def read_rows(path: Path, shape: RowShape) -> ContextRows:
    """Read the file of a context; any problem raises in one line that names the file."""
    with _naming(path, "remove that file to compute it again"):
        return _rows(_read_table(path, shape.audit), shape)


def read_packed(path: Path, shape: RowShape, contexts: int) -> list[ContextRows]:
    """As `read_rows`, for a file with several of the `contexts` of an audit."""
    with _naming(path, "get it again from where it came from"):
        table, each = _read_table(path, shape.audit), shape.hosts * len(shape.topologies)
        numbers = _numbers(table, "context")[::each].tolist()
        unique = len(set(numbers)) == len(numbers) and set(numbers) <= set(range(contexts))
        if len(table) != each * len(numbers) or not unique:
            raise ValueError("its rows are not those of the audit")
        return [
            _rows(table.slice(at * each, each), replace(shape, context=context))
            for at, context in enumerate(numbers)
        ]


def _read_table(path: Path, audit: str) -> pa.Table:
    # pyarrow cannot open paths that are not UTF-8
    with path.open("rb") as raw, pq.ParquetFile(raw, page_checksum_verification=True) as file:
        _check_metadata(path, file.schema_arrow.metadata or {}, audit)
        table = file.read().cast(ROW_SCHEMA)
        for name in table.column_names:
            _require_filled(table, name)
        return table


@contextmanager
def _naming(path: Path, advice: str) -> Iterator[None]:
    """Turn any problem with a file into one line that names it."""
    try:
        yield
    except EsperError:
        raise
    except FileNotFoundError:
        raise EsperError(f"{path} is missing") from None
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        what = shorten(" ".join(str(error).split()), 120)
        raise EsperError(f"{path} is damaged ({what}): {advice}") from None


def _check_metadata(path: Path, metadata: dict[bytes, bytes], audit: str) -> None:
    schema = metadata.get(SCHEMA_KEY, b"").decode(errors="replace")
    if not schema.isdecimal():
        raise EsperError(f"{path} is not a file of an audit: remove it")
    require_schema(path, int(schema), SCHEMA)
    if metadata.get(AUDIT_KEY, b"").decode(errors="replace") != audit:
        raise EsperError(f"{path} belongs to another audit: remove it to compute it again")


def _rows(table: pa.Table, shape: RowShape) -> ContextRows:
    """Arrays of a table; ValueError if it does not have the shape."""
    grid = (shape.hosts, len(shape.topologies))
    expected = {
        "context": np.full(grid[0] * grid[1], shape.context),
        "host": np.repeat(np.arange(grid[0]), grid[1]),
        "topology": np.tile(shape.topologies, grid[0]),
    }
    for name, values in expected.items():
        if not np.array_equal(_numbers(table, name), values):
            raise ValueError(f"column {name} is not that of this context")
    drawn = {name: _drawn_value(table, name) for name in _DRAWN}
    arrays: dict[str, Any] = {
        f"{name}_HKT": _grid(table, name, (*grid, shape.steps + 1)) for name in CURVES
    }
    arrays |= {f"{name}_HKS": _grid(table, name, (*grid, shape.slots)) for name in SLOT_LISTS}
    return ContextRows(
        drawn=DrawnContext(shape.context, **drawn),
        topology_K=np.array(shape.topologies, dtype=np.int64),
        test_HK=_numbers(table, "test").reshape(grid),
        rollbacks_HK=_numbers(table, "rollbacks").astype(np.int64).reshape(grid),
        **arrays,
    )


def _require_filled(table: pa.Table, name: str) -> None:
    """Raise if a column, or a list in it, has empty entries."""
    column = table.column(name)
    inner = pa.types.is_list(column.type) and any(c.flatten().null_count for c in column.chunks)
    if column.null_count or inner:
        raise ValueError(f"column {name} has empty entries")


def _drawn_value(table: pa.Table, name: str) -> Any:
    """What a column says of the context, the same in every row."""
    values = _numbers(table, name)
    if not np.isfinite(values).all() or (values != values[0]).any():
        raise ValueError(f"column {name} is not one number, the same in every row")
    return values[0].item()


def _numbers(table: pa.Table, name: str) -> npt.NDArray[Any]:
    return np.asarray(table.column(name).to_numpy())


def _grid(table: pa.Table, name: str, shape: tuple[int, ...]) -> Floats:
    """A column of lists as an array."""
    column = table.column(name).combine_chunks()
    lists = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    lengths = np.diff(np.asarray(lists.offsets))
    if (lengths != shape[-1]).any():
        raise ValueError(f"column {name} has lists of other lengths than {shape[-1]}")
    return np.asarray(lists.flatten().to_numpy(), dtype=np.float32).reshape(shape)


def drawn_names() -> tuple[str, ...]:
    """Names of the columns that describe the context."""
    return tuple(f.name for f in fields(DrawnContext) if f.name != "context")
