"""`LiveFile`: what a run is doing right now, in one small file of its folder.

A thread of its own replaces the file at most once a second, from figures that are on the host
anyway; it is gone at the end of the session. It belongs to whoever holds the folder's lock: what a
killed process left behind is ignored by readers, and removed by the next session.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from esper.leyline.codec import Json, to_json
from esper.storage.atomic import replace_file
from esper.storage.folder_lock import lock_holder
from esper.storage.run_files import LIVE

WRITE_SECONDS: Final = 1.0
"""Between two writes, at least."""
REFRESH_SECONDS: Final = 5.0
"""Between two writes, at most: also while nothing changes, so that readers see that it is new."""
STALE_SECONDS: Final = 30.0
"""Age from which on readers ignore it: its process is stopped, or the clock was set."""


@dataclass(frozen=True, slots=True)
class LiveRecord:
    """What is under way. NaN, 0 or empty: not known, or not of this kind of run."""

    doing: str = ""
    """In words, as `training`."""
    share: float = float("nan")
    """Of the whole run, 0..1."""
    seconds_left: float = float("nan")
    round: int = -1
    """Round under way, from 0 (train)."""
    step: int = 0
    """Steps that are complete, of `steps`: of the round (train), of `policy` (compare)."""
    steps: int = 0
    accuracy: float = float("nan")
    """Mean over members in the newest step (train)."""
    score: float = float("nan")
    """Mean over members in the newest step (train, compare); best validation score so far (grow).
    """
    members: int = 0
    stages: tuple[tuple[str, int], ...] = ()
    """Slots of all members in each stage that holds a seed, by its name in the code (train)."""
    policy: str = ""
    """Policy under way (compare)."""
    done: int = 0
    """Runs that have ended (grow), policies with all steps (compare), of `total`."""
    total: int = 0
    running: int = 0
    """Runs under way (grow)."""
    session: str = ""
    """The holder of the folder's lock."""
    written: float = 0.0
    """Seconds since 1970."""


class LiveFile:
    """Context manager that keeps the file up to date, and removes it at the end.

    with LiveFile(folder, lambda: LiveRecord("training", step=clock.step)):
        ...                 while the folder's lock is held
    """

    def __init__(self, folder: Path, make: Callable[[], LiveRecord]) -> None:
        """`make`: called about once a second in another thread, so it must only look."""
        self._folder, self._make = folder, make
        self._path = folder / LIVE
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="live-record", daemon=True)
        self._newest: Json = None
        self._written = -REFRESH_SECONDS

    def __enter__(self) -> LiveFile:
        self._session = lock_holder(self._folder)
        self._remove()
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stopped.set()
        self._thread.join(timeout=WRITE_SECONDS)
        self._remove()

    def _work(self) -> None:
        while not self._stopped.is_set():
            self._write()
            self._stopped.wait(WRITE_SECONDS)

    def _write(self) -> None:
        now = time.time()
        newest = to_json(replace(self._make(), session=self._session))
        if newest == self._newest and abs(now - self._written) < REFRESH_SECONDS:
            return
        self._newest, self._written = newest, now
        assert isinstance(newest, dict)  # records encode to objects
        # A full disk or a folder that is gone: whoever watches sees less, the run goes on.
        with contextlib.suppress(OSError):
            replace_file(self._path, json.dumps(newest | {"written": now}).encode())

    def _remove(self) -> None:
        """Remove the file, and what a kill between its two steps has left."""
        with contextlib.suppress(OSError):
            for place in (self._path, *self._folder.glob(f".{LIVE}.*.tmp")):
                place.unlink(missing_ok=True)
