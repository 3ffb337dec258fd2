"""Sessions of a run: which process worked on it when, how far it came and how it ended.

`sessions.json` in the folders of `esper compare`, `esper audit` and `esper grow`; training has the
same in `run.json`. It is written at the start, whenever a result was saved, and at the end, so that
a killed session is one without an end. Times are in the file, because those of files do not survive
a copy.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final

from esper.leyline.codec import read_record
from esper.leyline.errors import EsperError
from esper.storage.atomic import write_atomic
from esper.storage.run_files import SESSIONS
from esper.storage.sealed_json import read_document, sealed_bytes

TIME_FORMAT: Final = "%Y-%m-%d %H:%M:%S"
"""Of times in UTC in run folders."""


class SessionEnd(Enum):
    """How a session ended."""

    FINISHED = "finished"
    """All work was done."""
    INTERRUPTED = "interrupted"
    """Stopped by a signal, with everything saved."""
    FAILED = "failed"
    """Ended by an exception."""


@dataclass(frozen=True, slots=True)
class _WorkSession:
    """One process that worked on a run."""

    command: str
    """As it can be pasted into a shell; empty if it was no command."""
    started: str
    """UTC."""
    seconds: float = 0.0
    """From the start to its last record."""
    before: int = 0
    """Results that were there at the start."""
    done: int = 0
    """Results that are there, of `total`."""
    total: int = 0
    end: SessionEnd | None = None
    """None while it runs, or if the process was killed."""
    failure: str = ""
    """The exception that ended it; empty if none did."""


@dataclass(frozen=True, slots=True)
class _WorkSessions:
    """Content of the file."""

    sessions: tuple[_WorkSession, ...] = ()
    """Oldest first."""


class SessionLog:
    """The sessions of a folder, the last of which is this process's own."""

    def __init__(self, folder: Path, command: str) -> None:
        """Record the start; the caller holds the folder's lock."""
        self._path = folder / SESSIONS
        self._before = read_sessions(folder)
        self._began = time.monotonic()
        self._last = _WorkSession(command, utc_now())
        self._write()

    def plan(self, done: int, total: int) -> None:
        """Record how much there is to do, and how much of it is done already."""
        self._last = replace(self._last, before=done, done=done, total=total)
        self._write()

    def saved(self, done: int) -> None:
        """Record how much is done."""
        self._last = replace(self._last, done=done)
        self._write()

    def ended(self, end: SessionEnd, failure: str = "") -> None:
        """Record the end."""
        self._last = replace(self._last, end=end, failure=failure)
        self._write()

    def _write(self) -> None:
        seconds = round(time.monotonic() - self._began, 3)
        self._last = replace(self._last, seconds=seconds)
        write_atomic(self._path, sealed_bytes(_WorkSessions((*self._before, self._last))))


_resumed_by: ContextVar[Callable[[Path], str] | None] = ContextVar("resumed_by", default=None)


@contextmanager
def resumed_by(command: Callable[[Path], str]) -> Iterator[None]:
    """Sessions inside the block are resumed by this command, given their folder."""
    token = _resumed_by.set(command)
    try:
        yield
    finally:
        _resumed_by.reset(token)


@contextmanager
def recorded_session(folder: Path, command: str = "") -> Iterator[SessionLog]:
    """Record a session of this process, and how the block ended.

    `command`: what resumes it in a shell; default: what `resumed_by` says.
    """
    known = _resumed_by.get()
    log = SessionLog(folder, command or (known(folder) if known is not None else ""))
    try:
        yield log
    except BaseException as error:
        stopped = not isinstance(error, Exception)
        end = SessionEnd.INTERRUPTED if stopped else SessionEnd.FAILED
        with contextlib.suppress(OSError):  # the first error is the one to report
            log.ended(end, "" if stopped else one_line(error))
        raise
    log.ended(SessionEnd.FINISHED)


def read_sessions(folder: Path) -> tuple[_WorkSession, ...]:
    """Sessions of a folder, oldest first; none before the first process recorded one."""
    path = folder / SESSIONS
    if not path.exists():
        return ()
    try:
        return read_record(_WorkSessions, read_document(path), str(path)).sessions
    except EsperError as error:
        raise EsperError(f"{error}; delete it, nothing but times and states is lost") from None


def resume_training(
    folder: Path, policy: str, rounds: int = 0, trust: bool = False, ranks: int = 1
) -> str:
    """Command that resumes training in `folder`, a path that works where the user stands.

    `trust`: its task or reward is a file, whose code is run only on request. `ranks`: processes
    that train together on this machine.

    >>> resume_training(Path("my runs/a"), "ppo", rounds=10)
    "esper train ppo --resume 'my runs/a' --rounds 10"
    """
    argv = ["esper", "train"]
    if ranks > 1:
        job = ["torchrun", "--standalone", "--nproc-per-node", str(ranks)]
        argv = [*job, "-m", "esper.scripts.train"]
    argv += [policy, "--resume", str(folder)]
    argv += ["--rounds", str(rounds)] if rounds else []
    argv += ["--trust"] if trust else []
    return shlex.join(argv)


def utc_now() -> str:
    """The time as run folders have it."""
    return time.strftime(TIME_FORMAT, time.gmtime())


def utc_time(seconds: float) -> str:
    """A time, in seconds since 1970, as run folders have it."""
    return time.strftime(TIME_FORMAT, time.gmtime(seconds))


def one_line(error: BaseException) -> str:
    """The error message on one line, prefixed by its type unless it is an `EsperError`."""
    text = " ".join(str(error).split())
    return text if isinstance(error, EsperError) else f"{type(error).__name__}: {text}"
