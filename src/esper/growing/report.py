"""The report of a run: one self-contained HTML page."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from esper.storage.atomic import require_writable, write_atomic

if TYPE_CHECKING:
    from esper.growing.result import GrowResult


def write_report(result: GrowResult, path: Path) -> None:
    """Write the page."""
    require_writable(path, "report to")
    write_atomic(path, f"<!doctype html><pre>{escape(str(result))}</pre>\n".encode())
