"""Runs one SELECT over the records of a run, in a DuckDB database in memory.

The database has no access to files from the start, and nobody can give it any: it reads nothing but
tables it was given, whatever a query or a name in a run holds. Parts of events are opened before
the query: one that is replaced meanwhile keeps its rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import dataset as ds

from esper.karn.query.event_views import select_events
from esper.karn.query.record_views import RECORD_VIEWS, record_table
from esper.karn.views.kinds import kind_of
from esper.karn.views.sessions import RunSession
from esper.karn.views.setup import RunSetup, setup_of
from esper.karn.views.tables import EventTables
from esper.leyline.errors import EsperError, shorten
from esper.leyline.telemetry import TelemetryEventType
from esper.nissa.columns import require_columns, schema_of
from esper.nissa.parquet import PARTS, folder_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_ROWS_AT_ONCE = 10_000
_STATEMENTS = ("SELECT", "EXPLAIN")
_CLOSED: Final = {"enable_external_access": "false", "lock_configuration": "true"}


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Columns of an answer, and its rows, read as they are used."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


@contextmanager
def run_query(run: Path, sql: str) -> Iterator[QueryResult]:
    """Answer a query over the views of a run; rows can be read inside the block."""
    kind_of(run)  # raises unless it is a run
    duckdb = _import_duckdb()
    with ExitStack() as stack:
        connection = stack.enter_context(duckdb.connect(":memory:", config=_CLOSED))
        _require_select(connection, sql)
        try:
            _add_views(connection, stack, run, sql)
            connection.execute(sql)
        except duckdb.Error as error:
            raise EsperError(_one_line(error)) from None
        columns = tuple(one[0] for one in connection.description or ())
        yield QueryResult(columns, _rows(connection))


def _import_duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise EsperError(
            "esper query needs DuckDB: install it with pip install 'esper-morph[query]'"
        ) from None
    return duckdb


def _require_select(connection: DuckDBPyConnection, sql: str) -> None:
    import duckdb

    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise EsperError(_one_line(error)) from None
    if len(statements) != 1:
        raise EsperError(f"{len(statements)} statements: give one SELECT")
    kind = statements[0].type.name
    if kind not in _STATEMENTS:
        raise EsperError(f"a {kind} statement: give a SELECT, records are never changed")


def _one_line(error: Exception) -> str:
    """The first paragraph of DuckDB's message; what follows points into the query."""
    said = str(error).partition("\n\nLINE")[0].partition("\nLINE")[0]
    return shorten(" ".join(said.split()), 300)


def _rows(connection: DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    while found := connection.fetchmany(_ROWS_AT_ONCE):
        yield from found


# ---- views -------------------------------------------------------------------------------------


def _add_views(connection: DuckDBPyConnection, stack: ExitStack, run: Path, sql: str) -> None:
    """Add all views; only those that the query mentions are read."""
    words = set(re.findall(r"\w+", sql.lower()))
    for view in RECORD_VIEWS:
        table = record_table(view, run if view.name in words else None)
        connection.register(view.name, table)
    tables = EventTables.of(run)
    setup = setup_of(tables)
    for kind in TelemetryEventType:
        wanted = kind.name.lower() in words
        stored = _dataset(stack, tables.folder, kind) if wanted else schema_of(kind).empty_table()
        _add_events(connection, stored, tables.sessions, kind, setup)


def _add_events(
    connection: DuckDBPyConnection,
    stored: Any,
    sessions: Sequence[RunSession],
    kind: TelemetryEventType,
    setup: RunSetup | None,
) -> None:
    source = f"stored_{kind.name.lower()}"
    connection.register(source, stored)
    select = f"{select_events(kind, source, setup)} WHERE {_counted(sessions)}"
    # Temporary, as what it reads is.
    connection.execute(f"CREATE TEMP VIEW {kind.name.lower()} AS {select}")


def _dataset(stack: ExitStack, folder: Path, kind: TelemetryEventType) -> Any:
    """Parts of an event type, opened; a table without rows if there are none."""
    schema = schema_of(kind).remove_metadata()
    paths = sorted(folder_of(folder, kind).glob(PARTS))
    if not paths:
        return schema.empty_table()
    form = ds.ParquetFileFormat()
    fragments = []
    for path in paths:
        fragment = form.make_fragment(pa.PythonFile(stack.enter_context(path.open("rb")), "r"))
        try:
            require_columns(fragment.physical_schema, kind, path)
        except pa.ArrowInvalid as error:
            raise EsperError(f"{path}: not a Parquet file, or damaged ({error})") from None
        fragments.append(fragment)
    return ds.FileSystemDataset(fragments, schema, form)


def _counted(sessions: Sequence[RunSession]) -> str:
    """As `sessions.counted_rows`, in SQL."""
    rules = [
        f"(wall_time >= '{later.started}'::DOUBLE OR round IS NULL OR round < {later.from_round})"
        for later in sessions[1:]
    ]
    return " AND ".join(rules) or "true"
