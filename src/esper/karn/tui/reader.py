"""What the terminal interface shows of a run, read anew when the run has changed.

A part that cannot be read at the moment (a folder that is being written, moved or removed) keeps
its last good value; `problem` says why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from esper.karn import views
from esper.karn.views.damage import UNREADABLE, problem_of

KEPT_EVENTS: Final = 300
"""Events that are kept for the list, newest last."""

T = TypeVar("T", bound="_OfRound")


class _OfRound(Protocol):
    @property
    def round(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RunShot:
    """A run at one moment; parts that its kind does not have are empty."""

    summary: views.RunSummary
    setup: views.RunSetup | None = None
    rounds: tuple[views.RoundPoint, ...] = ()
    members: tuple[views.MemberState, ...] = ()
    seeds: tuple[views.SeedLife, ...] = ()
    ppo: tuple[views.PPOPoint, ...] = ()
    anomalies: tuple[views.Anomaly, ...] = ()
    actions: tuple[views.RoundActions, ...] = ()
    speeds: tuple[views.SpeedPoint, ...] = ()
    events: tuple[views.EventLine, ...] = ()
    """The newest ones."""
    frontier: tuple[views.FrontierPoint, ...] = ()
    curves: tuple[views.NetworkCurve, ...] = ()
    contenders: tuple[views.Contender, ...] = ()
    log: tuple[views.LogLine, ...] = ()
    """Of runs that write no events."""
    problem: str = ""
    """Why a part is not up to date; empty if all are."""


class RunReader:
    """Reads a run again and again, each time only what is new.

    reader = RunReader(Path("runs/RUN"))
    shot = reader.read()
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self._cursor: views.RunCursor | None = None
        self._shot: RunShot | None = None
        self._events: deque[views.EventLine] = deque(maxlen=KEPT_EVENTS)

    def read(self) -> RunShot | None:
        """The run as it is now; None if nothing changed since the last call.

        Raises only if the folder never held a run.
        """
        if self._cursor is None:
            self._cursor = views.RunCursor(self.run)
        before = self._shot
        try:
            update = self._cursor.poll()
        except UNREADABLE as error:
            if before is None:
                raise
            return self._keep(replace(before, problem=problem_of(error)))
        if before is not None and not update.changed and not before.problem:
            return self._keep(replace(before, summary=update.summary)) if update.moved else None
        self._events.extend(update.events)
        shot = replace(
            before or RunShot(update.summary),
            summary=update.summary,
            events=tuple(self._events),
            problem=next(iter(update.problems.values()), ""),
        )
        restarted = any(event.type == "RUN_STARTED" for event in update.events)
        if restarted:  # a resumed run records some rounds again
            shot = replace(shot, rounds=(), ppo=(), anomalies=(), actions=(), speeds=())
        return self._keep(self._read_parts(replace(shot, rounds=_join(shot.rounds, update.rounds))))

    def _keep(self, shot: RunShot) -> RunShot | None:
        changed = shot != self._shot
        self._shot = shot
        return shot if changed else None

    def _read_parts(self, shot: RunShot) -> RunShot:
        for name, read in self._parts(shot).items():
            try:
                found: dict[str, Any] = {name: read()}
            except UNREADABLE as error:
                shot = replace(shot, problem=problem_of(error))
            else:
                shot = replace(shot, **found)
        missing = () if shot.problem else views.left_out(self.run)
        return replace(shot, problem=missing[0]) if missing else shot

    def _parts(self, shot: RunShot) -> Mapping[str, Callable[[], object]]:
        """What to read, by field."""
        run, kind = self.run, shot.summary.kind
        newest = shot.rounds[-1].round if shot.rounds else 0
        if kind is views.RunKind.TRAIN:
            return {
                "setup": lambda: views.read_setup(run),
                "members": lambda: views.read_members(run),
                "seeds": lambda: views.read_seeds(run),
                "ppo": lambda: _join(shot.ppo, views.read_ppo(run, _last(shot.ppo))),
                "anomalies": lambda: views.read_anomalies(run),
                "actions": lambda: views.read_actions(run, newest - 1),
                "speeds": lambda: _join(
                    shot.speeds, views.read_throughput(run, _last(shot.speeds))
                ),
            }
        return {
            "frontier": lambda: views.read_frontier(run),
            "curves": lambda: views.read_curves(run),
            "contenders": lambda: views.read_contenders(run),
            "log": lambda: views.read_log(run),
        }


def _join(before: Iterable[T], new: Iterable[T]) -> tuple[T, ...]:
    """By round; new ones replace those of the same round."""
    found = {one.round: one for one in before} | {one.round: one for one in new}
    return tuple(found[at] for at in sorted(found))


def _last(points: tuple[T, ...]) -> int:
    """The round before the newest one, which may have been read before it was complete."""
    return points[-1].round - 1 if points else -1
