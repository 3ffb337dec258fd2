"""What a search shows while it runs, and what callers may listen to."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Final, TextIO

from esper.growing.search import Search, judged, within
from esper.growing.trainers.job import Running
from esper.leyline.text import visible
from esper.leyline.user_errors import user_callback
from esper.nissa.trackers.names import require_trackers
from esper.nissa.trackers.tracking import Tracking
from esper.plotting.durations import format_duration

INTERVAL: Final = 1.0
"""Seconds between two lines on a terminal."""
PLAIN_INTERVAL: Final = 2.0
"""Seconds between two lines elsewhere."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a search is; given to `on_round` after every rung."""

    rung: int
    runs_done: int
    """Runs that have ended."""
    runs_planned: int
    """All runs of the table."""
    trained: int
    """Batches of all networks so far."""
    best_score: float
    """Best validation score of a run that has ended; NaN if none has."""
    runs: float
    """Compute spent, in full training runs of the model."""
    budget_runs: float
    """Most compute; infinite: as time allows."""
    seconds: float
    budget_seconds: float
    """Most time; infinite: no limit."""
    round: int
    """Rungs of the whole search before this one, those before a resume included."""

    def figures(self) -> dict[str, float]:
        """All of it that is finite, by name, for trackers."""
        every = {one.name: float(getattr(self, one.name)) for one in fields(self)}
        return {name: value for name, value in every.items() if not math.isinf(value)}

    def __str__(self) -> str:
        best = "" if math.isnan(self.best_score) else f"best {self.best_score:.4f}  "
        share = self.runs / self.budget_runs
        spent = format_duration(self.seconds)
        if math.isfinite(self.budget_seconds):
            share = max(share, self.seconds / self.budget_seconds)
            spent += f" of {format_duration(self.budget_seconds)}"
        return (
            f"rung {self.rung}: {self.runs_done} of {self.runs_planned} runs, "
            f"{self.trained:,} batches  {best}{100 * min(1.0, share):.0f} %  {spent}"
        )


class ProgressPrinter:
    """Prints where a search is; the `Observer` of a search."""

    def __init__(
        self,
        verbose: bool = True,
        on_round: Callable[[Progress], None] | None = None,
        track: Sequence[str] = (),
        stream: TextIO | None = None,
    ) -> None:
        self._verbose, self._on_round = verbose, on_round
        self._ended: Progress | None = None
        self.trackers = require_trackers(track)
        self.tracking: Tracking | None = None
        """Set once the run folder is open."""
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._printed = -math.inf
        self._width = 0

    def say(self, line: str) -> None:
        """Print a line that stays."""
        if self._verbose:
            self._print(line)

    def warn(self, line: str) -> None:
        """Print a line that stays, whether or not progress is printed."""
        self._print(f"warning: {line}")

    def _print(self, line: str) -> None:
        self._end_line()
        print(visible(line), file=self._stream, flush=True)
        self._printed = time.monotonic()

    @contextlib.contextmanager
    def logged(self) -> Iterator[None]:
        """Say what kasmina logs inside the block, each message once."""
        logger = logging.getLogger("esper.kasmina")
        handler, propagate = _Said(self.say), logger.propagate
        logger.addHandler(handler)
        logger.propagate = False
        try:
            yield
        finally:
            logger.propagate = propagate
            logger.removeHandler(handler)

    def on_tick(self, search: Search, running: Sequence[Running]) -> None:
        """Print where the search is, unless that was printed a moment ago."""
        wait = INTERVAL if self._terminal else PLAIN_INTERVAL
        if self._verbose and time.monotonic() - self._printed >= wait:
            self._show(str(progress_of(search, running)))

    def on_rung(self, search: Search) -> None:
        """Report the end of a rung."""
        self._ended = progress_of(search, ())
        self.say(str(self._ended))

    def on_saved(self) -> None:
        """Pass the rung that ended to trackers and `on_round`, which may raise."""
        ended = self._ended
        assert ended is not None, "set by on_rung"
        if self.tracking is not None:
            self.tracking.log(ended.round, ended.figures())
        if self._on_round is not None:
            with user_callback("on_round fails"):
                self._on_round(ended)

    def _show(self, line: str) -> None:
        self._printed = time.monotonic()
        if not self._terminal:
            print(line, file=self._stream, flush=True)
            return
        # The cursor goes back, so that whoever prints next writes over the line.
        print(f"\r{line:<{self._width}}\r", end="", file=self._stream, flush=True)
        self._width = len(line)

    def _end_line(self) -> None:
        if self._width:
            print(f"\r{'':<{self._width}}\r", end="", file=self._stream)
            self._width = 0


class _Said(logging.Handler):
    """Passes messages on, each once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say
        self._known: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message not in self._known:
            self._known.add(message)
            self._say(message)


def progress_of(search: Search, running: Sequence[Running]) -> Progress:
    """Where a search is; `running`: the runs under way."""
    table = search.table
    rows = within(table.rows, search.networks.budget)
    best = max(judged(rows), key=lambda row: row.merit, default=None)
    under_way = {one.number: one.trained for one in running}
    trained = {row.number: row.trained for row in table.rows} | under_way
    compute = sum(row.cost * trained[row.number] for row in table.rows)
    return Progress(
        rung=max(0, table.rungs - 1),
        runs_done=sum(row.ended and row.number not in under_way for row in table.rows),
        runs_planned=len(table.rows),
        trained=sum(trained.values()),
        best_score=math.nan if best is None else best.score,
        runs=compute / search.limits.length,
        budget_runs=search.limits.runs,
        seconds=search.clock.seconds,
        budget_seconds=search.clock.limit,
        round=max(0, table.rungs - 1),
    )
