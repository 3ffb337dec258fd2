"""Setup and rows of an audit folder, read for views."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet as pq

from esper.karn.views.damage import UNREADABLE, problem_of
from esper.karn.views.documents import (
    FileState,
    file_state,
    listed,
    numbers,
    read_entries,
    text,
    whole,
)
from esper.karn.views.kinds import RunKind, kind_of
from esper.leyline.errors import EsperError
from esper.storage import run_files as f

_COLUMNS: Final = ("context", "topology", "accuracy", "test", "budget")


@dataclass(frozen=True, slots=True)
class AuditSetup:
    """What an audit trains."""

    task: str
    seed: int | None
    contexts: int
    hosts: int
    topologies: tuple[tuple[str, ...], ...]
    params: tuple[int, ...]
    macs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One topology on one host in one context."""

    context: int
    topology: int
    budget: float
    """Compute of the context, in training runs of the host."""
    accuracies: tuple[float, ...]
    """On `val_score`, before the first step and after each."""
    test: float

    @property
    def accuracy(self) -> float:
        """At the end."""
        return self.accuracies[-1] if self.accuracies else math.nan


def read_audit_setup(run: Path) -> AuditSetup:
    """Setup of an audit."""
    info = read_entries(run / f.AUDIT, f.AUDIT_SCHEMA)
    return AuditSetup(
        task=text(info, "task"),
        seed=whole(info, "seed"),
        contexts=whole(info, "contexts") or 0,
        hosts=whole(info, "hosts") or 0,
        topologies=tuple(
            tuple(str(name) for name in one) if isinstance(one, list) else ()
            for one in listed(info, "topologies")
        ),
        params=tuple(int(n) for n in numbers(info, "params")),
        macs=tuple(int(n) for n in numbers(info, "macs")),
    )


def context_files(run: Path) -> list[Path]:
    """Files of the contexts that are done; one file if they are packed."""
    packed = run / f.PACKED
    return [packed] if packed.exists() else sorted((run / f.RECORDS).glob("context-*.parquet"))


@dataclass(frozen=True, slots=True)
class AuditRows:
    """Rows of all contexts that are done and can be read."""

    rows: tuple[AuditRow, ...]
    problems: tuple[str, ...]
    """One line for each file that cannot be read."""


def read_audit_rows(run: Path) -> tuple[AuditRow, ...]:
    """Rows of the contexts that are done; a damaged file leaves the others."""
    found = read_contexts(run)
    if found.problems and not found.rows:
        raise EsperError(found.problems[0])
    return found.rows


def left_out(run: Path) -> tuple[str, ...]:
    """Why parts of a run are not in its views, which show the rest."""
    return read_contexts(run).problems if kind_of(run) is RunKind.AUDIT else ()


def read_contexts(run: Path) -> AuditRows:
    """Rows of an audit, and what is damaged."""
    return _read_all(tuple((path, file_state(path)) for path in context_files(run)))


@lru_cache(maxsize=1)
def _read_all(files: tuple[tuple[Path, FileState], ...]) -> AuditRows:
    """Every view of an audit reads the same files one after the other."""
    rows, problems = list[AuditRow](), list[str]()
    for path, _ in files:
        try:
            rows += map(_row, _read(path))
        except UNREADABLE as error:
            problems.append(problem_of(error))
    return AuditRows(tuple(rows), tuple(problems))


def _row(row: dict[str, Any]) -> AuditRow:
    return AuditRow(
        context=row["context"],
        topology=row["topology"],
        budget=row["budget"],
        accuracies=tuple(row["accuracy"]),
        test=row["test"],
    )


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        # pyarrow cannot open paths that are not UTF-8
        with path.open("rb") as raw, pq.ParquetFile(raw) as file:
            found: list[dict[str, Any]] = file.read(columns=list(_COLUMNS)).to_pylist()
            return found
    except (pa.ArrowException, KeyError, OSError) as error:
        raise EsperError(f"{path}: not a file of an audit, or damaged ({error})") from None
