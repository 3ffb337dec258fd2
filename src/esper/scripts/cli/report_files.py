"""Writes report files before anything is printed; numbers are strict JSON.

Printing may block forever (`| less`); results are on disk by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from esper.karn.heartbeat import phase
from esper.storage.atomic import write_atomic
from esper.storage.sealed_json import json_bytes

ReportFile = tuple[Path, Callable[[Path], None]]
"""A path and the function that writes it."""


def json_file(path: Path, record: object) -> ReportFile:
    """A report file with a record as strict JSON."""
    return path, lambda place: write_atomic(place, json_bytes(record))


@contextmanager
def write_before_printing(*files: ReportFile) -> Iterator[None]:
    """Write all files, then run the block, which prints.

    If a file cannot be written, the others and the block still run; the first error is raised at
    the end.
    """
    with phase("writing the report"):
        errors = [error for file in files if (error := _write(*file)) is not None]
    yield
    if errors:
        raise errors[0]


def _write(path: Path, write: Callable[[Path], None]) -> OSError | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)  # it may have been deleted meanwhile
        write(path)
    except OSError as error:
        return error
    return None
