"""Runs a process on a terminal of its own and measures how long it says nothing."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MAX_SILENCE = 2.0


@dataclass(frozen=True)
class Silence:
    """Time without output."""

    seconds: float
    after: str
    """The last output before it."""


@dataclass(frozen=True)
class Watched:
    """A process that ended."""

    status: int
    output: str
    longest: Silence


def watch(become: Callable[[], None], columns: int = 120) -> Watched:
    """Fork a process on a terminal; `become`: what it does, at best to execute a program."""
    began = time.monotonic()
    process, terminal = pty.fork()
    if process == 0:
        try:
            become()
        finally:
            os._exit(1)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    parts: list[bytes] = []
    longest, last = Silence(0.0, ""), began
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # the process has ended
            data = b""
        now = time.monotonic()
        if now - last > longest.seconds:
            longest = Silence(now - last, _text(parts[-1:]))
        if not data:
            break
        parts.append(data)
        last = now
    os.close(terminal)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return Watched(status, _text(parts), longest)


def watch_command(python: str, argv: list[str], folder: Path) -> Watched:
    """`esper` with these arguments, in a folder."""

    def become() -> None:
        os.chdir(folder)
        os.environ["TERM"] = "xterm-256color"
        os.execv(python, [python, "-m", "esper.scripts.main", *argv])

    return watch(become)


def _text(parts: list[bytes]) -> str:
    return b"".join(parts).decode(errors="replace")


def speaks(argv: list[str], place: Path) -> None:
    """`esper ARGV` prints something at least every `MAX_SILENCE` seconds."""
    found = watch_command(sys.executable, argv, place)
    assert found.status == 0, found.output[-2000:]
    assert found.longest.seconds <= MAX_SILENCE, (
        f"esper {argv[0]} was silent for {found.longest.seconds:.1f} s after "
        f"{found.longest.after[-200:]!r}"
    )
