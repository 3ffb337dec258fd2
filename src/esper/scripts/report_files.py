"""How is a report kept? Its files are written first, then it is printed.

Printing may wait for a reader that never comes (`| less`); results are on the disk by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from esper.scripts.records import json_bytes
from esper.storage.atomic import write_atomic

ReportFile = tuple[Path, Callable[[Path], None]]
"""A file, and what writes it."""


def json_file(path: Path, record: object) -> ReportFile:
    """A record as strict JSON."""
    return path, lambda place: write_atomic(place, json_bytes(record))


@contextmanager
def written_first(*files: ReportFile) -> Iterator[None]:
    """Write every file, then do the block, which prints.

    A file that cannot be written keeps neither the others nor the block from being done; the first
    such error is raised at the end.
    """
    errors = [error for file in files if (error := _write(*file)) is not None]
    yield
    if errors:
        raise errors[0]


def _write(path: Path, write: Callable[[Path], None]) -> OSError | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)  # it may have been removed meanwhile
        write(path)
    except OSError as error:
        return error
    return None
