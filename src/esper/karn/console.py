"""The console that reports are printed to."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final

from rich.console import Console

from esper.karn.terminal import Terminal

PLAIN_WIDTH: Final = 110
"""Columns without a terminal."""


def console_for_report() -> Console:
    """A console of the terminal's width, or `PLAIN_WIDTH`."""
    return Terminal(PLAIN_WIDTH)


def moving(words: str, quiet: bool = False) -> AbstractContextManager[object]:
    """Something that moves on a terminal while the block works, and is gone afterwards."""
    console = console_for_report()
    return nullcontext() if quiet or not console.is_terminal else console.status(words)
