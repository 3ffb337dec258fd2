"""Lock on a run folder, held for the lifetime of the process; lock on its events.

The kernel releases it when its holder ends, however it ends, so stale locks do not exist. The
content of the lock file names its holder, in messages and live records.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from esper.leyline.codec import read_record, to_json
from esper.leyline.errors import EsperError
from esper.storage.atomic import write_advice
from esper.storage.sealed_json import parse_json
from esper.storage.sessions import utc_now

LOCK: Final = "lock"
_ATTEMPTS: Final = 5
"""Attempts before a lock counts as held: listing runs holds it for an instant, too."""
_RETRY_SECONDS: Final = 0.02
"""Seconds between attempts."""


@dataclass(frozen=True, slots=True)
class _Holder:
    """Holder of a lock."""

    pid: int
    host: str
    since: str
    """In UTC."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} trains there since {self.since}"


class FolderLock:
    """Exclusive lock on a folder, until `release` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        """Acquire the lock; raises with its holder if the folder is in use."""
        path = folder / LOCK
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise EsperError(
                f"cannot lock {folder}: {error.strerror}; {write_advice(error)} or choose another "
                f"folder"
            ) from error
        try:
            self._acquire(folder)
            self._write_holder(folder)
        except BaseException:
            os.close(self._file)
            raise

    def _acquire(self, folder: Path) -> None:
        for tries_left in reversed(range(_ATTEMPTS)):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if not tries_left:
                    holder = _describe_holder(os.pread(self._file, 4096, 0))
                    raise EsperError(
                        f"{folder} is in use ({holder}): wait for it, stop it, or start a run of "
                        f"your own"
                    ) from None
                time.sleep(_RETRY_SECONDS)

    def _write_holder(self, folder: Path) -> None:
        holder = to_json(_Holder(os.getpid(), socket.gethostname(), utc_now()))
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, json.dumps(holder).encode(), 0)
        except OSError as error:
            raise EsperError(
                f"cannot write {folder / LOCK}: {error.strerror}; {write_advice(error)}"
            ) from error

    def release(self) -> None:
        """Release the lock; a second call is a no-op."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def lock_for_writing(descriptor: int, place: Path) -> None:
    """Lock events until their descriptor is closed; raises if another process writes there.

    A file system without locks is accepted.
    """
    with contextlib.suppress(OSError):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise EsperError(
                f"{place}: another run writes its events there; wait for it or choose another "
                f"folder (--telemetry-dir)"
            ) from None


def is_locked(folder: Path) -> bool:
    """Whether a process is training in the folder."""
    try:
        file = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def lock_holder(folder: Path) -> str:
    """What tells the holder of a folder's lock from those before it; empty if it is not known.

    The last holder's if nobody holds the lock (`is_locked`).
    """
    try:
        file = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.pread(file, 4096, 0).decode(errors="replace")
    finally:
        os.close(file)


def _describe_holder(raw: bytes) -> str:
    try:
        return str(read_record(_Holder, parse_json(raw), LOCK))
    except ValueError:  # it holds the lock but has not written its record yet
        return "by a process that just started"
