"""Sessions of a run, and which of the recorded rounds of a training run count.

A round that was lost by a kill is recorded again after the run resumed; then only the events of the
last session that ran it count.
"""

from __future__ import annotations

import calendar
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from esper.karn.views.documents import Entries, objects, read_entries, real, text, whole
from esper.leyline.arrays import Bools, Doubles, Ints
from esper.storage.run_files import RUN, SESSIONS
from esper.storage.sessions import TIME_FORMAT


@dataclass(frozen=True, slots=True)
class RunSession:
    """One process that worked on a run."""

    started: float
    """Seconds since 1970, rounded down."""
    from_round: int
    """Rounds, policies or contexts that were complete before it."""
    end: str
    """`FINISHED`, `INTERRUPTED`, `FAILED`; empty if it runs or was killed."""
    failure: str
    ended: float = math.nan
    """Seconds since 1970; NaN if it was not recorded. Of a comparison or an audit: its last record.
    """
    done: int = 0
    """Policies or contexts that are complete, of `total`."""
    total: int = 0
    command: str = ""
    """Empty if not recorded."""


def read_sessions(path: Path) -> tuple[RunSession, ...]:
    """Sessions of the training run in a folder, oldest first."""
    return tuple(
        RunSession(
            started=seconds_of(text(one, "started")),
            from_round=whole(one, "from_round") or 0,
            end=text(one, "end"),
            failure=text(one, "failure"),
            ended=seconds_of(text(one, "ended")),
        )
        for one in objects(read_entries(path / RUN), "sessions")
    )


def read_work_sessions(path: Path) -> tuple[RunSession, ...]:
    """Sessions of a run of another kind; unpacked records have none."""
    if not (path / SESSIONS).exists():
        return ()
    return tuple(map(_work_session, objects(read_entries(path / SESSIONS), "sessions")))


def _work_session(one: Entries) -> RunSession:
    started = seconds_of(text(one, "started"))
    return RunSession(
        started=started,
        from_round=whole(one, "before") or 0,
        end=text(one, "end"),
        failure=text(one, "failure"),
        ended=started + real(one, "seconds"),
        done=whole(one, "done") or 0,
        total=whole(one, "total") or 0,
        command=text(one, "command"),
    )


def seconds_of(stamp: str) -> float:
    """Seconds since 1970 of a time in UTC as run folders have it; NaN if it is not one.

    >>> seconds_of("1970-01-01 00:01:00")
    60.0
    """
    try:
        return float(calendar.timegm(time.strptime(stamp, TIME_FORMAT)))
    except ValueError:
        return math.nan


def counted_rows(sessions: tuple[RunSession, ...], time_N: Doubles, round_N: Ints) -> Bools:
    """Which events count: those of rounds that no later session ran again.

    >>> runs = (RunSession(0.0, 0, "", ""), RunSession(10.0, 2, "", ""))
    >>> counted_rows(runs, np.array([5.0, 6.0, 12.0]), np.array([1, 2, 2])).tolist()
    [True, False, True]
    """
    counted_N = np.ones(len(time_N), dtype=np.bool_)
    for later in sessions[1:]:
        counted_N &= (time_N >= later.started) | (round_N < later.from_round)
    return counted_N
