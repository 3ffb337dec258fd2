"""Who trains in a folder? A lock on a file in it, held as long as the process lives.

The kernel drops the lock when its holder ends, however it ends: a lock that is left over never
keeps anyone out. What is written in the file serves the message alone.
"""

from __future__ import annotations

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

LOCK: Final = "lock"
_PATIENCE: Final = 5
"""Tries before a lock counts as held: whoever lists runs holds it for an instant, too."""
_PAUSE: Final = 0.02
"""Seconds between tries."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock."""

    pid: int
    host: str
    since: str
    """In UTC."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} trains there since {self.since}"


class FolderLock:
    """Keeps a second trainer out of a folder, until `release` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        """Take the lock; a folder that is in use is refused by naming its holder."""
        path = folder / LOCK
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise EsperError(
                f"cannot lock {folder}: {error.strerror}; {write_advice(error)} or choose another "
                f"folder"
            ) from error
        try:
            self._take(folder)
            self._sign(folder)
        except BaseException:
            os.close(self._file)
            raise

    def _take(self, folder: Path) -> None:
        for tries_left in reversed(range(_PATIENCE)):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if not tries_left:
                    holder = _holder_of(os.pread(self._file, 4096, 0))
                    raise EsperError(
                        f"{folder} is in use ({holder}): wait for it, stop it, or start a run of "
                        f"your own"
                    ) from None
                time.sleep(_PAUSE)

    def _sign(self, folder: Path) -> None:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        holder = to_json(Holder(os.getpid(), socket.gethostname(), since))
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, json.dumps(holder).encode(), 0)
        except OSError as error:
            raise EsperError(
                f"cannot write {folder / LOCK}: {error.strerror}; {write_advice(error)}"
            ) from error

    def release(self) -> None:
        """Let others in; a second time does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def is_locked(folder: Path) -> bool:
    """Whether someone trains in the folder now."""
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


def _holder_of(raw: bytes) -> str:
    try:
        return str(read_record(Holder, parse_json(raw), LOCK))
    except ValueError:  # it has the lock, but has not signed yet
        return "by a process that just started"
