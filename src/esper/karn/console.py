"""The console that reports are printed to."""

from __future__ import annotations

from typing import Final

from rich.console import Console

from esper.karn.terminal import Terminal

PLAIN_WIDTH: Final = 110
"""Columns without a terminal."""


def console_for_report() -> Console:
    """A console of the terminal's width, or `PLAIN_WIDTH`."""
    return Terminal(PLAIN_WIDTH)
