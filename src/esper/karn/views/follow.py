"""`RunCursor`: what is new in a run since the last look, of any kind of run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from esper.karn.views.damage import UNREADABLE, naming_damage, problem_of
from esper.karn.views.documents import FileState, file_state
from esper.karn.views.events import EventCursor, EventLine
from esper.karn.views.kinds import RunKind, kind_of
from esper.karn.views.rounds import RoundPoint, read_rounds
from esper.karn.views.summary import RunState, RunSummary, run_summary
from esper.storage import run_files as f

T = TypeVar("T")
_WATCHED = {
    RunKind.TRAIN: (f.RUN, f.TAGS),
    RunKind.GROW: (f.GROW, f.SEARCH, f.RESULT, f.SESSIONS, f.TAGS),
    RunKind.COMPARE: (f.POLICIES, f.COMPARISON, f.SESSIONS, f.TAGS),
    RunKind.AUDIT: (f.AUDIT, f.RECORDS, f.CONTENDERS, f.SESSIONS, f.TAGS),
}
"""Files and folders that change when there is something new."""


@dataclass(frozen=True, slots=True)
class RunUpdate:
    """What is new."""

    summary: RunSummary
    events: tuple[EventLine, ...]
    """New events of a training run; empty for other kinds."""
    rounds: tuple[RoundPoint, ...]
    """New or replaced rounds of a training run."""
    changed: bool
    """Whether anything is recorded that is new: else nothing needs to be read again."""
    moved: bool
    """Whether what is under way is further, or anything changed."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why `events` or `rounds` cannot be read."""

    @property
    def ended(self) -> bool:
        """No process writes to the run; it may be resumed later."""
        return self.summary.state is not RunState.RUNNING


class RunCursor:
    """Follows a run while it is written, after its end, and after its writer was killed.

    cursor = RunCursor(Path("runs/RUN"))
    while not (update := cursor.poll()).ended:
        ...
        time.sleep(1)
    """

    def __init__(self, run: Path, from_end: bool = False) -> None:
        """`from_end`: leave out the events that are there already."""
        self.run, self.kind = run, kind_of(run)
        with naming_damage(run):
            self._events = EventCursor(run, from_end)
        self._newest_round = -1
        self._seen: tuple[FileState, ...] = ()
        self._state: RunState | None = None
        self._live = 0.0
        self._problems: dict[str, str] = {}

    def poll(self) -> RunUpdate:
        """What is new since the last call; the first call returns all there is."""
        first, before = self._state is None, self._problems
        self._problems = {}
        events, rounds = self._new_training()
        summary = run_summary(self.run)
        seen = tuple(file_state(self.run / name) for name in _WATCHED[self.kind])
        changed = bool(events or rounds) or seen != self._seen or summary.state != self._state
        changed |= self._problems != before
        live = 0.0 if summary.live is None else summary.live.written
        moved = changed or first or live != self._live
        self._seen, self._state, self._live = seen, summary.state, live
        return RunUpdate(summary, events, rounds, changed or first, moved, self._problems)

    def _new_training(self) -> tuple[tuple[EventLine, ...], tuple[RoundPoint, ...]]:
        if self.kind is not RunKind.TRAIN:
            return (), ()
        events = self._read("events", self._events.read)
        for event in events:
            if event.type == "RUN_STARTED":  # a resumed run may repeat rounds
                self._newest_round = -1
        rounds = self._read("rounds", lambda: read_rounds(self.run, self._newest_round))
        if rounds:
            self._newest_round = rounds[-1].round
        return events, rounds

    def _read(self, name: str, read: Callable[[], tuple[T, ...]]) -> tuple[T, ...]:
        """What a reader returns; nothing, and the reason is kept, if a file is damaged."""
        try:
            return read()
        except UNREADABLE as error:
            self._problems[name] = problem_of(error)
            return ()
