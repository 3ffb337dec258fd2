"""The console that reports are printed to."""

from __future__ import annotations

import sys
from typing import Final

from rich.console import Console

PLAIN_WIDTH: Final = 110
"""Columns without a terminal."""


def console_for_report() -> Console:
    """A console of the terminal's width, or `PLAIN_WIDTH`."""
    return Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
