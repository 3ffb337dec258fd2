"""Sessions of a training run, and which of its recorded rounds count.

A round that was lost by a kill is recorded again after the run resumed; then only the events of the
last session that ran it count.
"""

from __future__ import annotations

import calendar
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from esper.karn.views.documents import objects, read_entries, text, whole
from esper.leyline.arrays import Bools, Doubles, Ints
from esper.storage.run_files import RUN


@dataclass(frozen=True, slots=True)
class RunSession:
    """One process that trained the run."""

    started: float
    """Seconds since 1970, rounded down."""
    from_round: int
    """Rounds that were complete before it."""
    end: str
    """`FINISHED`, `INTERRUPTED`, `FAILED`; empty if it runs or was killed."""
    failure: str


def read_sessions(path: Path) -> tuple[RunSession, ...]:
    """Sessions of the run in a folder, oldest first."""
    return tuple(
        RunSession(
            started=seconds_of(text(one, "started")),
            from_round=whole(one, "from_round") or 0,
            end=text(one, "end"),
            failure=text(one, "failure"),
        )
        for one in objects(read_entries(path / RUN), "sessions")
    )


def seconds_of(stamp: str) -> float:
    """Seconds since 1970 of a time in UTC as run folders have it; NaN if it is not one.

    >>> seconds_of("1970-01-01 00:01:00")
    60.0
    """
    try:
        return float(calendar.timegm(time.strptime(stamp, "%Y-%m-%d %H:%M:%S")))
    except ValueError:
        return float("nan")


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
