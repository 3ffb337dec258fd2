"""JSON Lines files: one object a line, the last of which may be incomplete."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from esper.leyline.codec import Json
from esper.leyline.errors import EsperError

_BLOCK: Final = 1 << 16


def read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Json]]]:
    """Yield place and object of each line in order; an incomplete last line is skipped."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                where = f"{path} line {number}"
                yield where, parse_line(line, where)


def parse_line(line: bytes, where: str) -> dict[str, Json]:
    """Return the object of one line; raises if it is not one."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise EsperError(f"{where}: not JSON; not written by Esper, or damaged since") from None
    if not isinstance(found, dict):
        raise EsperError(f"{where}: expected an object, found {type(found).__name__}")
    return found


def end_of_lines(file: int) -> int:
    """Offset after the last complete line of an open file; 0 if it has none."""
    end = os.fstat(file).st_size
    while end:
        start = max(0, end - _BLOCK)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
