"""The runs in a folder: kind, state, progress and time of each, from small files."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from esper.karn.views.audit_records import context_files, read_audit_setup
from esper.karn.views.damage import UNREADABLE, problem_of
from esper.karn.views.documents import Entries, entries, objects, read_entries, real, text, whole
from esper.karn.views.events import last_events
from esper.karn.views.headline import (
    NONE,
    Headline,
    policies_headline,
    search_headline,
    training_headline,
)
from esper.karn.views.kinds import RunKind, find_kind, kind_of
from esper.karn.views.live import read_live, under_way
from esper.karn.views.rounds import numbered
from esper.karn.views.search_table import read_search
from esper.karn.views.sessions import RunSession, read_sessions, read_work_sessions
from esper.leyline.context import saved_rounds_vary
from esper.leyline.errors import EsperError
from esper.leyline.text import visible
from esper.plotting.durations import duration
from esper.plotting.numbers import number
from esper.storage import run_files as f
from esper.storage.atomic import require_folder
from esper.storage.folder_lock import is_locked
from esper.storage.live import LiveRecord
from esper.storage.sessions import SessionEnd, resume_training, utc_time
from esper.storage.tags import read_tags

_RECENT = 40
"""Events at the end of a live run's file that are searched for its newest round."""


class RunState(StrEnum):
    """State of a run."""

    RUNNING = "running"
    """A process holds its lock."""
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    """Stopped by a signal, with everything saved."""
    FAILED = "failed"
    """Ended by an error, which `problem` has."""
    KILLED = "killed"
    """Ended without a word: kill -9, a power cut."""
    BROKEN = "broken"
    """The folder, or a part of it, cannot be read; `problem` says which and why."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run in a list. None: not known."""

    path: Path
    name: str
    """Of its folder, as it is shown."""
    kind: RunKind
    state: RunState
    problem: str = ""
    task: str = ""
    """Task; class of the model (grow)."""
    policy: str = ""
    """`ppo` or the policy (train)."""
    seed: int | None = None
    created: str = ""
    """In UTC."""
    updated: float | None = None
    """Last record, in seconds since 1970."""
    seconds: float | None = None
    """Time that it ran: all sessions, of training the last one."""
    pace: float | None = None
    """Seconds per unit in the session that runs."""
    done: float = 0.0
    """Of `total`, in `unit`."""
    total: float | None = None
    unit: str = ""
    """`rounds`, `training runs` or `minutes` (grow), `policies`, `contexts`."""
    score: float | None = None
    """Newest mean training score (train), test score of the pick (grow)."""
    ranked: bool = True
    """Whether scores of rounds compare, so that one is the best: not where each draws budget or
    data of its own (train)."""
    best_score: float | None = None
    """Best mean training score of a round (train)."""
    best_round: int | None = None
    """Rounds done when it was reached (train)."""
    params: int | None = None
    """Of the pick (grow)."""
    host_score: float | None = None
    """Of the model as it was given, on test (grow)."""
    metric: str = ""
    """What the score is (grow)."""
    result: Headline = NONE
    """What was judged; before that what training or validation says so far."""
    verdict: str = ""
    """Outcome in one sentence (grow)."""
    tags: tuple[str, ...] = ()
    """Words that people gave it (`esper runs tag`)."""
    resume: str = ""
    """Command that continues it, for a shell; empty if it is finished or not known."""
    live: LiveRecord | None = None
    """What its process is doing right now."""

    @property
    def progress(self) -> float | None:
        """0..1, what is under way included; None if the total is not known."""
        share = _known(self.live.share) if self.live else None
        if self.unit == "minutes" and self.state is RunState.FINISHED:
            return 1.0  # it may end before its time is spent
        if not self.total:
            return None if share is None else min(1.0, max(0.0, share))
        return min(1.0, max(0.0, self.done / self.total, share or 0.0))

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at this pace; None: not known, or it does not run."""
        left = _known(self.live.seconds_left) if self.live else None
        if left is not None:
            return left
        if self.pace is None or not self.total or self.progress == 1.0:
            return None
        return self.pace * self.total * (1.0 - (self.progress or 0.0))

    @property
    def amount(self) -> str:
        """How much is done, as `2 of 3 rounds` or `38 s of 10 min 0 s`; of a search that ended
        within its time, only that time.
        """
        is_time = self.unit == "minutes"
        if is_time and self.state is RunState.FINISHED:
            return duration(60.0 * self.done)
        done, *total = (
            duration(60.0 * value) if is_time else number(value)
            for value in (self.done, self.total)
            if value is not None
        )
        of = f" of {total[0]}" if total else ""
        return f"{done}{of}" if is_time else f"{done}{of} {self.unit}".rstrip()

    @property
    def created_short(self) -> str:
        """When it was made, to the minute and without the year; other text as it is."""
        found = re.fullmatch(r"\d{4}-(\d\d-\d\d \d\d:\d\d):\d\d", self.created)
        return found[1] if found else self.created

    @property
    def headline(self) -> str:
        """Its result in a few words."""
        return self.result.text

    @property
    def under_way(self) -> str:
        """What its process is doing right now, in words."""
        return "" if self.live is None else under_way(self.live)


def list_runs(root: Path) -> tuple[RunSummary, ...]:
    """All runs in a folder, oldest first; folders that hold no run are left out."""
    require_folder(root, "give the folder that runs are in")
    with os.scandir(root) as places:
        folders = [root / one.name for one in places if one.is_dir() and one.name[0] != "."]
    runs = [_summary(path, kind) for path in folders if (kind := find_kind(path)) is not None]
    return tuple(sorted(runs, key=lambda run: (run.created, run.name)))


def run_summary(path: Path) -> RunSummary:
    """One run; a folder that cannot be read has state BROKEN, one without a run raises."""
    return _summary(path, kind_of(path))


def _summary(path: Path, kind: RunKind) -> RunSummary:
    running = is_locked(path)
    live = read_live(path) if running else None
    first = RunSummary(path, visible(path.name), kind, RunState.KILLED, live=live)
    try:
        run = _READERS[kind](first, running)
    except UNREADABLE as error:
        run = replace(first, state=RunState.BROKEN, problem=problem_of(error))
    try:
        return replace(run, tags=read_tags(path))
    except UNREADABLE as error:
        return replace(run, problem=run.problem or problem_of(error))


_STATES: Mapping[str, RunState] = {
    SessionEnd.FINISHED.name: RunState.FINISHED,
    SessionEnd.INTERRUPTED.name: RunState.INTERRUPTED,
    SessionEnd.FAILED.name: RunState.FAILED,
}


def _state(running: bool, last: RunSession | None) -> RunState:
    """State of a run whose last session is known; one without an end was killed."""
    if running:
        return RunState.RUNNING
    return _STATES.get(last.end if last else "", RunState.KILLED)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


# ---- train -------------------------------------------------------------------------------------


def _train(run: RunSummary, running: bool) -> RunSummary:
    path = run.path
    info = read_entries(path / f.RUN, f.RUN_SCHEMA)
    config = read_entries(path / f.CONFIG) if (path / f.CONFIG).exists() else {}
    sessions = read_sessions(path)
    learns = not (path / f.POLICY).exists()
    policy = "ppo" if learns else text(read_entries(path / f.POLICY), "policy")
    summary, damaged = _newest_summary(path, learns)
    last = sessions[-1] if sessions else None
    state = _state(running, last)
    done = whole(summary, "round") or 0
    run = replace(
        run,
        state=state,
        problem=last.failure if last and last.failure else damaged,
        task=text(info, "task"),
        policy=policy,
        seed=whole(info, "seed"),
        created=text(info, "created"),
        done=done,
        total=whole(config, "rounds") or whole(summary, "rounds"),
        unit="rounds",
        ranked=_ranked(config, summary),
        score=_known(real(summary, "score")),
        best_score=_known(real(summary, "best_score")),
        best_round=whole(summary, "best_round") or None,
        resume=_training_command(path, policy, state),
    )
    if running:
        run = _with_newest_round(run)
    if not run.ranked:  # older runs have a best round all the same
        run = replace(run, best_score=None, best_round=None)
    score = math.nan if run.score is None else run.score
    run = replace(run, result=training_headline(path, score, int(run.done)))
    return _with_training_times(run, last) if last else run


def _ranked(config: Entries, summary: Entries) -> bool:
    """See `RunSummary.ranked`. Settings lack the context of a task that has one of its own."""
    varied = saved_rounds_vary(entries(config, "task").get("contexts"))
    return not varied and summary.get("varied") is not True


def _training_command(path: Path, policy: str, state: RunState) -> str:
    """Training that is finished needs more rounds to resume, which nobody but its user knows."""
    if state in (RunState.RUNNING, RunState.FINISHED):
        return ""
    return resume_training(path, policy, trust=(path / f.SOURCE).is_dir())


def _newest_summary(path: Path, learns: bool) -> tuple[Entries, str]:
    """Progress in the newest readable checkpoint or stored round, and why a newer one is not."""
    problem = ""
    for _, saved in reversed(numbered(path / (f.CHECKPOINTS if learns else f.ROUNDS))):
        try:
            return _saved_summary(saved, learns), problem
        except EsperError as error:
            problem = problem or str(error)
    return {}, problem


def _saved_summary(saved: Path, learns: bool) -> Entries:
    """Progress in the manifest of a checkpoint, or in a stored round."""
    if not learns:
        return entries(read_entries(saved), "summary")
    return entries(entries(read_entries(saved / f.CHECKPOINT), "content"), "summary")


def _with_newest_round(run: RunSummary) -> RunSummary:
    """Rounds since the last checkpoint, from the last events."""
    if run.live is not None:  # all rounds before the one under way are complete
        run = replace(run, done=max(run.done, run.live.round))
    for event in reversed(last_events(run.path, _RECENT)):
        if event.type == "ROUND_COMPLETED" and event.round is not None:
            done = max(run.done, event.round + 1)
            return replace(
                run,
                done=done,
                score=_known(real(event.payload, "mean_score")),
                best_score=_known(real(event.payload, "best_score")),
            )
    return run


def _with_training_times(run: RunSummary, last: RunSession) -> RunSummary:
    """Time of the last session: until now, until its end, or until its last event."""
    if run.state is RunState.RUNNING:
        now = time.time()
        done = (run.progress or 0.0) * (run.total or 0.0) - last.from_round
        seconds = max(0.0, now - last.started)
        spent = seconds if run.live is None else run.live.written - last.started
        return replace(run, updated=now, seconds=seconds, pace=spent / done if done > 0 else None)
    until = last.ended
    if math.isnan(until):
        until = max((one.time for one in last_events(run.path, 1)), default=math.nan)
    if math.isnan(until) or until < last.started:  # killed before its first event
        return run
    return replace(run, updated=until, seconds=until - last.started)


# ---- grow, compare, audit ----------------------------------------------------------------------


def _grow(run: RunSummary, running: bool) -> RunSummary:
    path = run.path
    if running and not (path / f.GROW).exists():  # written a moment after the folder
        return replace(run, state=RunState.RUNNING)
    info = read_entries(path / f.GROW, f.GROW_SCHEMA)
    search, sessions = read_search(path), read_work_sessions(path)
    pick, host = search.pick, entries(search.result, "host")
    last = sessions[-1] if sessions else None
    state = _grow_state(running, search.result, last)
    if search.problems and not running:
        state = RunState.BROKEN
    run = _with_search(run, info, search.spent)
    return replace(
        run,
        state=state,
        problem=(last.failure if last else "") or next(iter(search.problems), ""),
        resume=_resume_of(last, state) if last else "",
        task=text(info, "model"),
        seed=whole(info, "seed"),
        created=text(info, "created"),
        updated=last.ended if last else None,
        pace=60.0 if running and run.unit == "minutes" else None,
        score=_known(real(pick, "test_score")),
        params=whole(pick, "params"),
        host_score=_known(real(host, "test_score")),
        metric=text(info, "metric"),
        result=search_headline(search, running),
        verdict=text(search.result, "verdict"),
    )


def _with_search(run: RunSummary, info: Entries, spent: Entries) -> RunSummary:
    """What a search has spent of its budget: compute, or time if nothing else is limited."""
    seconds, total = _known(real(spent, "seconds")), _known(real(info, "runs"))
    if total == math.inf:
        minutes = _known(real(entries(info, "budget"), "minutes"))
        return replace(
            run, seconds=seconds, done=(seconds or 0.0) / 60.0, total=minutes, unit="minutes"
        )
    batches = sum(real(row, "cost") * real(row, "trained") for row in objects(spent, "rows"))
    done = real(spent, "runs") if "runs" in spent else batches / real(info, "length")
    return replace(
        run, seconds=seconds, done=_known(done) or 0.0, total=total, unit="training runs"
    )


def _grow_state(running: bool, result: Entries, last: RunSession | None) -> RunState:
    """A search that is interrupted judges what it has: its session ends well."""
    ended = RunState.FINISHED if result.get("complete") is True else RunState.INTERRUPTED
    if running:
        return RunState.RUNNING
    if last is not None and last.end != SessionEnd.FINISHED.name:
        return _state(False, last)
    return ended if result else RunState.KILLED


def _compare(run: RunSummary, running: bool) -> RunSummary:
    settings, sessions = read_entries(run.path / f.SETTINGS), read_work_sessions(run.path)
    run = replace(
        run,
        task=text(settings, "task"),
        seed=whole(settings, "first_seed"),
        done=sessions[-1].done if sessions else 0,
        total=(sessions[-1].total or None) if sessions else None,
        unit="policies",
        result=policies_headline(run.path),
    )
    return _with_sessions(run, running, sessions, False, run.path / f.SETTINGS)


def _audit(run: RunSummary, running: bool) -> RunSummary:
    path, setup = run.path, read_audit_setup(run.path)
    done = setup.contexts if (path / f.PACKED).exists() else len(context_files(path))
    run = replace(
        run,
        task=setup.task,
        seed=setup.seed,
        done=done,
        total=setup.contexts,
        unit="contexts",
        result=policies_headline(run.path),
    )
    sessions = read_work_sessions(path)
    return _with_sessions(run, running, sessions, done >= setup.contexts, path / f.AUDIT)


def _with_sessions(
    run: RunSummary,
    running: bool,
    sessions: tuple[RunSession, ...],
    complete: bool,
    first_file: Path,
) -> RunSummary:
    """State and times from sessions; without any, whether it is `complete`, and a file's time."""
    if not sessions:
        state = RunState.FINISHED if complete else RunState.INTERRUPTED
        created = utc_time(first_file.stat().st_mtime)
        return replace(run, state=RunState.RUNNING if running else state, created=created)
    last, state = sessions[-1], _state(running, sessions[-1])
    spent = sum(one.ended - one.started for one in sessions[:-1])
    latest = time.time() if running else last.ended
    done = run.done - last.from_round
    return replace(
        run,
        state=state,
        problem=last.failure,
        created=utc_time(sessions[0].started),
        updated=latest,
        seconds=spent + latest - last.started,
        pace=(latest - last.started) / done if running and done > 0 else None,
        resume=_resume_of(last, state),
    )


def _resume_of(last: RunSession, state: RunState) -> str:
    return last.command if state not in (RunState.RUNNING, RunState.FINISHED) else ""


_READERS: Mapping[RunKind, Callable[[RunSummary, bool], RunSummary]] = {
    RunKind.TRAIN: _train,
    RunKind.GROW: _grow,
    RunKind.COMPARE: _compare,
    RunKind.AUDIT: _audit,
}
