"""What a terminal shows while a command reads or computes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from esper.karn.terminal import console_for_report


def moving(words: str, quiet: bool = False) -> AbstractContextManager[object]:
    """Something that moves on a terminal while the block works, and is gone afterwards."""
    console = console_for_report()
    return nullcontext() if quiet or not console.is_terminal else console.status(words)
