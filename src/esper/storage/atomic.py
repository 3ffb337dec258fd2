"""Atomic file writes, and helpers for messages about files that cannot be written."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from esper.leyline.errors import EsperError

_NO_FOLDER_SYNC: Final = (errno.EINVAL, errno.ENOTSUP)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_TAKEN: Final = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY)
_umask_lock: Final = threading.Lock()


def write_atomic(path: Path, content: bytes) -> None:
    """Write to a temporary file beside `path`, sync, rename; a failure keeps the old file.

    A device or a pipe is written to: a rename would replace it, /dev/null included, for root.
    An OSError carries `path`, whichever file or descriptor it was raised for.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(content)
        else:
            _write_and_rename(path, content)
    except OSError as error:
        if error.errno is not None:
            error.filename = os.fspath(path)
        raise


def replace_file(path: Path, content: bytes) -> None:
    """As `write_atomic`, for what need not survive a power failure: nothing waits for the disk."""
    _write_and_rename(path, content, durable=False)


def _write_and_rename(path: Path, content: bytes, durable: bool = True) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            if durable:
                os.fsync(file.fileno())
        os.replace(name, path)
        if durable:
            sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def sync_folder(folder: Path) -> None:
    """Sync a folder so that renames survive a power failure, if the file system supports it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def printable(text: str) -> str:
    """Escape bytes of a path that are not valid UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def write_advice(error: OSError) -> str:
    """Return what to do about a file that could not be written.

    >>> write_advice(OSError(errno.ENOSPC, "No space left on device"))
    'free some space'
    """
    if error.errno in _FULL:
        return "free some space"
    return "move away what is there" if error.errno in _TAKEN else "check its permissions"


def save_file(path: Path, content: bytes, durable: bool = True) -> None:
    """Write a file atomically; what keeps it from being written is one line.

    `durable`: False: as `replace_file`.
    """
    try:
        (write_atomic if durable else replace_file)(path, content)
    except OSError as error:
        raise EsperError(f"cannot write {path}: {error.strerror}; {write_advice(error)}") from error


def is_write_failure(error: OSError) -> bool:
    """Whether a write failed for lack of space or permission, or because the name is taken.

    >>> is_write_failure(OSError(errno.ENOSPC, "full")), is_write_failure(BrokenPipeError())
    (True, False)
    """
    return error.errno in (*_FULL, *_CLOSED, *_TAKEN)


def _umask() -> int:
    """Return the umask, which can only be read by setting it."""
    with _umask_lock:  # two threads at once would leave it at 0
        mask = os.umask(0)
        os.umask(mask)
    return mask


def require_writable(path: Path, flag: str) -> None:
    """Create the folder of `path` and test it, so that a run does not fail when it ends."""
    if path.is_dir():
        raise EsperError(f"{flag} {path} is a folder: name a file, or move it away")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise EsperError(
            f"{flag} {path} cannot be written ({error.strerror}): choose another path"
        ) from error


def require_not_folders(paths: Iterable[Path]) -> None:
    """Raise if a folder blocks a file to be written, before a run is lost to it."""
    for path in paths:
        if path.is_dir():
            raise EsperError(f"{path} is a folder, but a file is to be written there: move it away")
        if path.parent.exists() and not path.parent.is_dir():
            raise EsperError(f"{path.parent} is a file, but must be a folder: move it away")


def require_folder(path: Path, advice: str) -> None:
    """Raise with the advice unless there is such a folder."""
    try:
        if path.is_dir():
            return
        found = "is a file" if path.exists() else "does not exist"
    except OSError as error:  # a name that is too long, or a folder that may not be entered
        found = f"cannot be read ({error.strerror})"
    raise EsperError(f"{path} {found}: {advice}")
