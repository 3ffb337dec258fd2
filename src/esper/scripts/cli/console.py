"""The console that reports are printed to."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from rich.console import Console

PLAIN_WIDTH: Final = 110
"""Columns without a terminal."""


def console_for_report() -> Console:
    """A console of the terminal's width, or `PLAIN_WIDTH`."""
    return Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)


def moving(words: str, quiet: bool = False) -> AbstractContextManager[object]:
    """Something that moves on a terminal while the block works, and is gone afterwards."""
    console = console_for_report()
    return nullcontext() if quiet or not console.is_terminal else console.status(words)
