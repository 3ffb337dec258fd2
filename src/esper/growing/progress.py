"""What a search shows while it runs, and what callers may listen to."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final, TextIO

from esper.growing.live import TICK, LiveLine, bar
from esper.growing.runs import Row
from esper.growing.search import Search, judged, within
from esper.growing.trainers.job import Running
from esper.leyline.user_errors import user_callback
from esper.nissa.trackers.names import require_trackers
from esper.nissa.trackers.tracking import Tracking
from esper.plotting.durations import duration
from esper.storage.live import LiveFile, LiveRecord

BAR: Final = 24
"""Characters of the bar, where there is room for them."""
LEAST_SHARE: Final = 0.02
"""Share of the budget from which on the pace so far says how long the rest takes."""


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

    @property
    def share(self) -> float:
        """Share of the budget that is spent, 0..1."""
        return min(1.0, max(self.runs / self.budget_runs, self.seconds / self.budget_seconds))

    @property
    def seconds_left(self) -> float:
        """Until the end: by the clock, or at the pace so far; NaN: not known yet."""
        by_clock = self.budget_seconds - self.seconds
        done = self.runs / self.budget_runs
        at_pace = self.seconds * (1.0 - done) / done if done >= LEAST_SHARE else math.inf
        left = max(0.0, min(by_clock, at_pace))
        return left if math.isfinite(left) else math.nan

    def words(self) -> list[str]:
        """Share of the budget, time left, runs, the best score; what is known of them."""
        left, best = self.seconds_left, self.best_score
        return [
            f"{100 * self.share:.0f} %",
            *([] if math.isnan(left) else [f"{duration(left)} left"]),
            *([] if math.isnan(best) else [f"best {best:.4f}"]),
            f"{self.runs_done} of {self.runs_planned} runs",
        ]

    def __str__(self) -> str:
        return ", ".join(self.words())


class ProgressPrinter:
    """Shows where a search is: on a terminal as one bar, elsewhere in plain lines."""

    def __init__(
        self,
        verbose: bool = True,
        on_round: Callable[[Progress], None] | None = None,
        track: Sequence[str] = (),
        stream: TextIO | None = None,
    ) -> None:
        self._verbose, self._on_round = verbose, on_round
        self.trackers = require_trackers(track)
        self.tracking: Tracking | None = None
        """Set once the run folder is open."""
        self._live = LiveLine(self._line, stream)
        self._began, self._phase = time.monotonic(), "starting"
        self._best: Row | None = None
        self._newest: Progress | None = None
        self._ended: Progress | None = None
        self._looked = -math.inf
        self._is_written, self._running = False, 0

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show progress inside the block, and what kasmina logs, each message once."""
        with self._logged():
            if self._verbose:
                self._live.start()
            try:
                yield
            finally:
                self._live.stop()

    def phase(self, name: str) -> None:
        """Show what is done from now on."""
        self._phase = name

    def written_to(self, folder: Path) -> LiveFile:
        """Keep the live record of a run folder, which this process has locked."""
        self._is_written = True
        return LiveFile(folder, self._record)

    def say(self, line: str) -> None:
        """Print a line that stays."""
        if self._verbose:
            self._live.print(line)

    def warn(self, line: str) -> None:
        """Print a line that stays, whether or not progress is printed."""
        self._live.print(f"warning: {line}")

    @contextlib.contextmanager
    def _logged(self) -> Iterator[None]:
        logger = logging.getLogger("esper.kasmina")
        handler, propagate = _Said(self.say), logger.propagate
        logger.addHandler(handler)
        logger.propagate = False
        try:
            yield
        finally:
            logger.propagate = propagate
            logger.removeHandler(handler)

    # ---- of a search ----------------------------------------------------------------------

    def on_tick(self, search: Search, running: Sequence[Running]) -> None:
        """Several times a second: note where the search is, unless that was done a moment ago."""
        if (self._verbose or self._is_written) and time.monotonic() - self._looked >= TICK:
            self._note(search, running)

    def on_rung(self, search: Search) -> None:
        """Note the end of a rung, before it is saved."""
        self._ended = self._note(search, ())
        if not self._live.is_terminal:
            self.say(self._line(0))

    def on_saved(self) -> None:
        """Pass the rung that ended to trackers and `on_round`; a resume continues from there if
        they raise."""
        ended = self._ended
        assert ended is not None, "set by on_rung"
        if self.tracking is not None:
            self.tracking.log(ended.round, ended.figures())
        if self._on_round is not None:
            self._live.erase()
            with user_callback("on_round fails"):
                self._on_round(ended)

    def _note(self, search: Search, running: Sequence[Running]) -> Progress:
        """Where the search is now; the best so far never falls, as one that is resumed might.

        What a run under way had a moment ago, no network has: only runs that have ended count.
        """
        under_way = {one.number for one in running}
        fitting = judged(within(search.table.rows, search.networks.budget))
        rows = [row for row in fitting if row.number not in under_way]
        kept = () if self._best is None else (self._best,)
        self._best = max((*kept, *rows), key=lambda row: row.merit, default=None)
        best = math.nan if self._best is None else self._best.score
        now = _progress(search, running, best)
        self._newest, self._looked, self._running = now, time.monotonic(), len(running)
        return now

    def _record(self) -> LiveRecord:
        """What is under way; called in another thread."""
        newest = self._newest
        if newest is None:
            return LiveRecord(self._phase)
        return LiveRecord(
            self._phase,
            share=newest.share,
            seconds_left=newest.seconds_left,
            score=newest.best_score,
            done=newest.runs_done,
            total=newest.runs_planned,
            running=self._running,
        )

    def _line(self, columns: int) -> str:
        """The bar for a number of columns; 0: a plain line."""
        newest, now = self._newest, time.monotonic()
        if newest is None:
            return f"{self._phase}, {duration(now - self._began)}"
        newest = replace(newest, seconds=newest.seconds + now - self._looked)
        if not columns:
            return f"{self._phase}: {newest}"
        words = f"{self._phase} " + "  ".join(newest.words())
        width = min(BAR, columns - len(words) - 1)
        drawn = f"{bar(newest.share, width, self._live.encoding)} " if width > 1 else ""
        return f"{self._phase} {drawn}{'  '.join(newest.words())}"[:columns]


class _Said(logging.Handler):
    """Passes warnings on, each once; the rest goes to the log as always."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say
        self._known: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING:
            logging.getLogger("esper").handle(record)
            return
        message = record.getMessage()
        if message not in self._known:
            self._known.add(message)
            self._say(message)


def _progress(search: Search, running: Sequence[Running], best_score: float) -> Progress:
    """Where a search is; `running`: the runs under way."""
    table = search.table
    under_way = {one.number: one.trained for one in running}
    trained = {row.number: row.trained for row in table.rows} | under_way
    compute = sum(row.cost * trained[row.number] for row in table.rows)
    return Progress(
        rung=max(0, table.rungs - 1),
        runs_done=sum(row.ended and row.number not in under_way for row in table.rows),
        runs_planned=len(table.rows),
        trained=sum(trained.values()),
        best_score=best_score,
        runs=compute / search.ladder.full,
        budget_runs=search.most_runs,
        seconds=search.clock.seconds,
        budget_seconds=search.clock.limit,
        round=max(0, table.rungs - 1),
    )
