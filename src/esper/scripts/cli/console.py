"""Where a report is printed."""

from __future__ import annotations

import sys
from typing import Final

from rich.console import Console

PLAIN_WIDTH: Final = 110
"""Columns where there is no terminal to ask."""


def console_for_report() -> Console:
    """As wide as the terminal, where there is one."""
    return Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
