"""Lock that allows one writer of events per folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from esper.leyline.errors import EsperError


def lock_for_writing(descriptor: int, place: Path) -> None:
    """Lock a descriptor until it is closed; raises if another process holds the lock.

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
