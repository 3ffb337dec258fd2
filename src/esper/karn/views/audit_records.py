"""Setup and rows of an audit folder, read for views."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

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
from esper.karn.views.tables import parquet_file
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


def read_audit_rows(run: Path) -> tuple[AuditRow, ...]:
    """Rows of the contexts that are done; a damaged file leaves the others."""
    rows, problems = read_contexts(run)
    if problems and not rows:
        raise EsperError(problems[0])
    return rows


def left_out(run: Path) -> tuple[str, ...]:
    """Why parts of a run are not in its views, which show the rest."""
    return read_contexts(run)[1] if kind_of(run) is RunKind.AUDIT else ()


def read_contexts(run: Path) -> tuple[tuple[AuditRow, ...], tuple[str, ...]]:
    """Rows of all contexts that are done, and one line for each file that cannot be read."""
    return _read_all(tuple((path, file_state(path)) for path in context_files(run)))


@lru_cache(maxsize=1)
def _read_all(
    files: tuple[tuple[Path, FileState], ...],
) -> tuple[tuple[AuditRow, ...], tuple[str, ...]]:
    """Every view of an audit reads the same files one after the other."""
    rows, problems = list[AuditRow](), list[str]()
    for path, _ in files:
        try:
            with parquet_file(path) as file:
                rows += map(_row, file.read(columns=list(_COLUMNS)).to_pylist())
        except UNREADABLE as error:
            problems.append(problem_of(error))
    return tuple(rows), tuple(problems)


def _row(row: dict[str, Any]) -> AuditRow:
    return AuditRow(
        context=row["context"],
        topology=row["topology"],
        budget=row["budget"],
        accuracies=tuple(row["accuracy"]),
        test=row["test"],
    )
