"""`RunFeed`: what the page of a run shows. First all of it, then what is new.

A message is one JSON object. `run` is in every one, and all of it if only what is under way has
moved. Series (`rounds`, `learner`, ...) hold points by round that replace those from their first
round on; `frontier`, `lineage`, `best`, `curves`, `notes`, `log` and `contenders` replace what was
there; `events`, lines of the log of training, are added. A part that cannot be read is named in
`problems` with the reason, and the others are there all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from esper.karn import views
from esper.karn.views.damage import UNREADABLE, naming_damage, problem_of
from esper.karn.views.documents import NO_FILE, file_state
from esper.karn.views.follow import RunCursor, RunUpdate
from esper.karn.views.kinds import RunKind
from esper.karn.views.plain import thinned, to_plain
from esper.karn.web.listing import run_entry
from esper.leyline.codec import Json
from esper.storage import run_files as f

MAX_POINTS: Final = 2000
"""Points of a series in a message; of more, evenly spaced ones are sent."""
OVERLAP: Final = 2
"""Newest rounds that are read again: parts of a round reach the disk one after the other."""
MAX_CURVES: Final = 60
"""Curves of networks in a message, those with the highest scores."""
MAX_EVENTS: Final = 100
"""Lines on events in a message, the newest."""
MAX_LINES: Final = 500
"""Lines of another log, the newest."""
LAST_EVENTS: Final = 5 * MAX_EVENTS
"""Events that are read for the first message: many of them are in figures, not in sentences."""

Series = Callable[[Path, int], Sequence[Any]]
_SERIES: Final[dict[str, Series]] = {
    "rounds": views.read_rounds,
    "learner": views.read_ppo,
    "speed": views.read_throughput,
    "actions": views.read_actions,
    "anomalies": views.read_anomalies,
}
"""Of training runs, by round."""


class RunFeed:
    """Reads one run for one page."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._cursor = RunCursor(run, from_end=True)
        self._newest = dict.fromkeys(_SERIES, -1)
        self._problems: dict[str, Json] = {}
        self._judged_at = NO_FILE
        self._sent: dict[str, Json] = {}
        self._setup: views.RunSetup | None = None

    def first(self) -> dict[str, Json]:
        """Everything there is."""
        with naming_damage(self._run):
            message = self._message(self._cursor.poll())
            if self._cursor.kind is RunKind.TRAIN:
                events = self._read("events", lambda: views.last_events(self._run, LAST_EVENTS))
                message["events"] = self._sentences(events)
            return message

    def next(self) -> dict[str, Json] | None:
        """What is new since the last message; None: nothing."""
        with naming_damage(self._run):
            update = self._cursor.poll()
            if update.changed:
                return self._message(update)
            return {"run": run_entry(update.summary)} if update.moved else None

    def _message(self, update: RunUpdate) -> dict[str, Json]:
        self._problems = dict(update.problems)
        message: dict[str, Json] = {"run": run_entry(update.summary)}
        if self._cursor.kind is RunKind.TRAIN:
            message |= self._training(update)
        else:
            message |= self._search()
        return message | {"problems": self._problems}

    def _training(self, update: RunUpdate) -> dict[str, Json]:
        if update.rounds and update.rounds[0].round <= self._newest["rounds"]:
            # A resumed run has recorded rounds anew.
            self._newest = dict.fromkeys(self._newest, update.rounds[0].round - 1)
        setup = self._read("setup", lambda: [views.read_setup(self._run)])
        self._setup = next(iter(setup), None)
        found: dict[str, Json] = {
            "setup": to_plain(setup[:1]),
            "events": self._sentences(update.events),
        }
        for name, reader in _SERIES.items():
            found[name] = self._points(name, reader)
        return found | self._judged()

    def _sentences(self, events: Sequence[views.EventLine]) -> Json:
        """The newest events that a log shows."""
        return to_plain(views.log_of_events(events, self._setup)[-MAX_EVENTS:])

    def _judged(self) -> dict[str, Json]:
        """How the learner was judged, if that is new: its file holds the whole history, too."""
        state = file_state(self._run / f.REPORT / f.LEARNING)
        if state == self._judged_at:
            return {}
        self._judged_at = state
        found = self._read("contenders", lambda: views.read_contenders(self._run))
        return {"contenders": to_plain(found)}

    def _points(self, name: str, reader: Series) -> Json:
        after = max(-1, self._newest[name] - OVERLAP)
        points = self._read(name, lambda: reader(self._run, after))
        if points:
            self._newest[name] = points[-1].round
        return to_plain(thinned(points, MAX_POINTS))

    def _search(self) -> dict[str, Json]:
        run = self._run
        curves = self._read("curves", lambda: views.read_curves(run))
        notes = to_plain(self._read("notes", lambda: views.read_notes(run)))
        log = self._read("log", lambda: views.read_log(run))
        if missing := views.left_out(run):
            self._problems["left_out"] = "; ".join(missing)
        large = self._new("notes", notes) | self._new("log", to_plain(log[-MAX_LINES:]))
        return large | {
            "log_total": len(log),
            "frontier": to_plain(self._read("frontier", lambda: views.read_frontier(run))),
            "lineage": to_plain(self._read("lineage", lambda: views.read_lineage(run))),
            "best": to_plain(self._read("best", lambda: views.read_best(run))),
            "curves": to_plain(curves[:MAX_CURVES]),
            "curves_total": len(curves),
            "contenders": to_plain(self._read("contenders", lambda: views.read_contenders(run))),
        }

    def _new(self, name: str, value: Json) -> dict[str, Json]:
        """A large part of a message, if it is new."""
        if self._sent.get(name) == value:
            return {}
        self._sent[name] = value
        return {name: value}

    def _read(self, name: str, reader: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """A part of the run; empty, with the reason in `problems`, if it cannot be read."""
        try:
            return reader()
        except UNREADABLE as error:
            self._problems[name] = problem_of(error)
            return ()
