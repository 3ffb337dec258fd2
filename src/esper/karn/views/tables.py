"""Rows of a training run's events, by type and rounds, from its Parquet parts.

A part whose rounds are known not to be wanted is skipped by its footer, so that the newest rounds
of a long run cost as little as those of a short one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet as pq

from esper.karn.views.documents import read_entries, text
from esper.karn.views.sessions import RunSession, counted_rows, read_sessions
from esper.leyline.errors import EsperError
from esper.leyline.telemetry import TelemetryEventType
from esper.leyline.text import visible_in
from esper.nissa.columns import require_columns, schema_of
from esper.nissa.parquet import PARTS, folder_of
from esper.storage.run_files import RUN, SESSION

Row = dict[str, Any]
"""A row by column name."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rounds to read, both ends included; None: no limit."""

    first: int | None = None
    last: int | None = None


EVERY: Rounds = Rounds()


def events_folder(run: Path) -> Path:
    """Folder that the events of a run are in: its own, unless `--telemetry-dir` named another."""
    if not (run / SESSION).exists():
        return run
    elsewhere = text(read_entries(run / SESSION), "telemetry_dir")
    return Path(elsewhere) if elsewhere else run


@dataclass(frozen=True, slots=True)
class EventTables:
    """Events of a run by type."""

    folder: Path
    sessions: tuple[RunSession, ...]

    @classmethod
    def of(cls, run: Path) -> EventTables:
        """The events of the run in a folder; it may have none."""
        return cls(events_folder(run), read_sessions(run) if (run / RUN).exists() else ())

    def read(
        self, kind: TelemetryEventType, columns: Sequence[str] = (), rounds: Rounds = EVERY
    ) -> pa.Table:
        """Rows that count, in order; `columns`: of the payload, empty: all.

        `event`, `row`, `wall_time`, `round` and `step` are there in any case.
        """
        schema = _wanted(schema_of(kind), columns)
        parts = [_read_part(path, kind, schema, rounds) for path in self._parts(kind)]
        table = pa.concat_tables([schema.empty_table(), *parts])
        counted_N = counted_rows(
            self.sessions, table.column("wall_time").to_numpy(), numpy_ints(table, "round")
        )
        return table if counted_N.all() else table.filter(pa.array(counted_N))

    def rows(
        self, kind: TelemetryEventType, columns: Sequence[str] = (), rounds: Rounds = EVERY
    ) -> list[Row]:
        """As `read`, as a list of rows."""
        found: list[Row] = visible_in(self.read(kind, columns, rounds).to_pylist())
        return found

    def newest_round(self, *kinds: TelemetryEventType) -> int:
        """The newest round that has an event of one of the types; -1 if there is none."""
        newest = -1
        for kind in kinds:
            for path in reversed(self._parts(kind)):
                last = _round_range(path)[1]
                if last is not None:
                    newest = max(newest, last)
                    break
        return newest

    def _parts(self, kind: TelemetryEventType) -> list[Path]:
        return sorted(folder_of(self.folder, kind).glob(PARTS))


_PLACE = ("event", "row", "wall_time", "round", "step")


def _wanted(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    names = (*_PLACE, *columns) if columns else schema.names
    return pa.schema([schema.field(name) for name in names])


def _round_range(path: Path) -> tuple[int | None, int | None]:
    """Lowest and highest round of a part; None if unknown."""
    with parquet_file(path) as file:
        return _range_of(file.metadata)


@contextmanager
def parquet_file(path: Path) -> Iterator[pq.ParquetFile]:
    """A Parquet file to read; whatever is wrong with it is one line."""
    try:
        # pyarrow cannot open paths that are not UTF-8
        with path.open("rb") as raw, pq.ParquetFile(raw) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise EsperError(f"{path}: not a Parquet file, or damaged ({error})") from None


def _range_of(metadata: pq.FileMetaData) -> tuple[int | None, int | None]:
    at = metadata.schema.names.index("round")
    found = [metadata.row_group(g).column(at).statistics for g in range(metadata.num_row_groups)]
    known = [one for one in found if one is not None and one.has_min_max]
    if len(known) < len(found) or not known:
        return None, None
    return min(one.min for one in known), max(one.max for one in known)


def _read_part(path: Path, kind: TelemetryEventType, schema: pa.Schema, rounds: Rounds) -> pa.Table:
    with parquet_file(path) as file:
        require_columns(file.schema_arrow, kind, path)
        if _left_out(file.metadata, rounds):
            return schema.empty_table()
        table = file.read(columns=schema.names)
    return _between(table.select(schema.names).cast(schema), rounds)


def _left_out(metadata: pq.FileMetaData, rounds: Rounds) -> bool:
    low, high = _range_of(metadata)
    if low is None or high is None:
        return False
    above = rounds.last is not None and low > rounds.last
    return above or (rounds.first is not None and high < rounds.first)


def _between(table: pa.Table, rounds: Rounds) -> pa.Table:
    if rounds == EVERY:
        return table
    round_N = numpy_ints(table, "round")
    wanted_N = np.ones(len(round_N), dtype=np.bool_)
    if rounds.first is not None:
        wanted_N &= round_N >= rounds.first
    if rounds.last is not None:
        wanted_N &= round_N <= rounds.last
    return table.filter(pa.array(wanted_N))


def numpy_ints(table: pa.Table, name: str) -> Any:
    """A column of integers, null as -1."""
    return table.column(name).fill_null(-1).to_numpy()
