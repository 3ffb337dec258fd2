"""What a command prints when it is interrupted: how far it came, and the command that continues."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


def command_line(verb: str, argv: Sequence[str]) -> str:
    """The command as it can be pasted into a shell.

    >>> command_line("compare", ["wait", "static:r0c0=norm; twin", "--seeds", "4"])
    "esper compare wait 'static:r0c0=norm; twin' --seeds 4"
    """
    return shlex.join(["esper", verb, *argv])


@contextmanager
def resumable(command: str, progress: Callable[[], str]) -> Iterator[None]:
    """Print progress and command if the block is interrupted; `command` is empty in Python."""
    try:
        yield
    except KeyboardInterrupt:
        how = f"resume with: {command}" if command else "the same call resumes"
        print(f"{progress()}; {how}", file=sys.stderr)
        raise
