"""`Tracking`: sends the figures of a run to its trackers, and keeps them away from the run.

    with track_run(["wandb"], folder, "my run", settings) as tracking:
        tracking.log(0, {"mean_score": 0.5})

Every tracker has a thread of its own, which imports, opens, feeds and closes it: a run only appends
to a queue. A tracker that raises, at any of these, is switched off with one warning; one that hangs
is left behind at the end. Files and states of trackers are in FOLDER/trackers.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Final, cast

from esper.leyline.codec import Json, read_record
from esper.leyline.payloads import RunStatus
from esper.leyline.user_errors import format_error
from esper.nissa.trackers.names import LIBRARIES, TrackerName, require_trackers
from esper.nissa.trackers.protocol import TrackedRun, Tracker, TrackerState
from esper.storage.atomic import write_atomic
from esper.storage.sealed_json import read_document, sealed_bytes

FOLDER: Final = "trackers"
CLOSE_SECONDS: Final = 60.0
"""How long a run waits for its trackers at the end."""
_log = logging.getLogger(__name__)


class Tracking:
    """The trackers of one run; `log` neither blocks nor raises."""

    def __init__(self, names: Sequence[TrackerName], run: TrackedRun) -> None:
        self._feeds = [_Feed(name, run) for name in names]

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Send the figures of a step; NaN, which is not a measurement, is left out."""
        known = {name: float(v) for name, v in figures.items() if not math.isnan(v)}
        for feed in self._feeds:
            feed.put(step, known)

    def close(self, status: RunStatus, timeout: float = CLOSE_SECONDS) -> None:
        """Wait until all is sent; the run ended like this."""
        for feed in self._feeds:
            feed.end(status)
        for feed in self._feeds:
            feed.join(timeout)


@contextlib.contextmanager
def track_run(
    names: Sequence[str],
    folder: Path,
    name: str,
    settings: Mapping[str, Json],
    first_step: int = 0,
) -> Iterator[Tracking]:
    """Context of a tracked run; raises if a library is missing, before anything starts.

    `folder`: of the run; `first_step`: of this session's first record.
    """
    run = TrackedRun(name, folder / FOLDER, settings, first_step)
    tracking = Tracking(require_trackers(names), run)
    status = RunStatus.FAILED
    try:
        yield tracking
        status = RunStatus.COMPLETED
    except KeyboardInterrupt:
        status = RunStatus.INTERRUPTED
        raise
    finally:
        tracking.close(status)


class _Feed:
    """One tracker and its thread."""

    def __init__(self, name: TrackerName, run: TrackedRun) -> None:
        self._name, self._run = name, run
        self._queue: queue.SimpleQueue[tuple[int, Mapping[str, float]] | RunStatus]
        self._queue = queue.SimpleQueue()
        self._off = False
        self._thread = threading.Thread(target=self._work, name=f"esper-{name}", daemon=True)
        self._thread.start()

    def put(self, step: int, figures: Mapping[str, float]) -> None:
        if not self._off:
            self._queue.put((step, figures))

    def end(self, status: RunStatus) -> None:
        self._queue.put(status)

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)
        if self._thread.is_alive():
            _log.warning("tracker %s: not done after %.0f s, left behind", self._name, timeout)

    # ---- the thread -----------------------------------------------------------------------

    def _work(self) -> None:
        tracker: Tracker | None = None
        doing = "set-up"
        try:
            tracker = self._open()
            state = tracker.state
            self._keep(state)
            while not isinstance(item := self._queue.get(), RunStatus):
                doing = "logging"
                step, figures = item
                if step > state.last_step:  # else sent by an earlier session
                    tracker.log(step, figures)
                    state = replace(state, last_step=step)
                    self._keep(state)
            doing = "closing"
            closing, tracker = tracker, None
            closing.close(item)
        except (Exception, SystemExit) as error:
            self._off = True
            _log.warning(
                "tracker %s: %s failed (%s); it is switched off, the run is not affected",
                self._name,
                doing,
                format_error(error),
            )
            if tracker is not None:
                with contextlib.suppress(Exception, SystemExit):
                    tracker.close(RunStatus.FAILED)

    def _open(self) -> Tracker:
        module = import_module(LIBRARIES[self._name].home)
        place, before = self._state_file, TrackerState()
        if place.exists():
            before = read_record(TrackerState, read_document(place), str(place))
        return cast(Tracker, module.open_tracker(self._run, before))

    @property
    def _state_file(self) -> Path:
        return self._run.folder / f"{self._name}.json"

    def _keep(self, state: TrackerState) -> None:
        self._run.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self._state_file, sealed_bytes(state))
