"""Who writes events to a place? One at a time: two would replace each other's files."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from esper.leyline.errors import EsperError


def lock_for_writing(descriptor: int, place: Path) -> None:
    """Keep other writers out until the descriptor is closed; where one writes already, refuse.

    A file system that has no locks is not refused.
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
