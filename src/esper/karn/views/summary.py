"""The runs in a folder: kind, state, progress and time of each, from small files alone."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from esper.karn.views.audit_records import context_files, read_audit_setup
from esper.karn.views.documents import Entries, entries, objects, read_entries, real, text, whole
from esper.karn.views.events import last_events
from esper.karn.views.kinds import RunKind, find_kind, kind_of
from esper.karn.views.rounds import newest_numbered
from esper.karn.views.sessions import read_sessions, seconds_of
from esper.karn.views.tables import events_folder
from esper.leyline.errors import EsperError
from esper.storage import run_files as f
from esper.storage.folder_lock import is_locked

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
    """The folder cannot be read; `problem` says why."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run in a list. None: not known."""

    path: Path
    name: str
    """Of its folder."""
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
    """Last write, in seconds since 1970."""
    seconds: float | None = None
    """Time that it ran, of the last session if there were several."""
    done: float = 0.0
    """Of `total`, in `unit`."""
    total: float | None = None
    unit: str = ""
    """`rounds`, `host runs`, `policies` or `contexts`."""
    score: float | None = None
    """Newest mean score (train), test score of the pick (grow)."""
    best_score: float | None = None
    """Best mean score of a round (train)."""
    verdict: str = ""
    """Outcome in one line (grow)."""

    @property
    def progress(self) -> float | None:
        """0..1; None if the total is not known."""
        return min(1.0, self.done / self.total) if self.total else None


def list_runs(root: Path) -> tuple[RunSummary, ...]:
    """All runs in a folder, oldest first; folders that hold no run are left out."""
    if not root.is_dir():
        found = "is a file" if root.exists() else "does not exist"
        raise EsperError(f"{root} {found}: give the folder that runs are in")
    with os.scandir(root) as places:
        folders = [root / one.name for one in places if one.is_dir() and one.name[0] != "."]
    runs = [_summary(path, kind) for path in folders if (kind := find_kind(path)) is not None]
    return tuple(sorted(runs, key=lambda run: (run.created, run.name)))


def run_summary(path: Path) -> RunSummary:
    """One run; a folder that cannot be read has state BROKEN, one without a run raises."""
    return _summary(path, kind_of(path))


def _summary(path: Path, kind: RunKind) -> RunSummary:
    first = RunSummary(path, path.name, kind, RunState.KILLED)
    try:
        found = _READERS[kind](first, is_locked(path))
    except (EsperError, OSError, ValueError) as error:
        return replace(first, state=RunState.BROKEN, problem=str(error))
    return replace(found, seconds=_seconds(found))


def _seconds(run: RunSummary) -> float | None:
    if run.seconds is not None:
        return run.seconds
    began = seconds_of(run.created)
    if run.updated is None or math.isnan(began):
        return None
    return max(0.0, run.updated - began)


def _written(*paths: Path) -> float | None:
    """Newest time of change of files that are there."""
    times = []
    for path in paths:
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times, default=None)


# ---- train -------------------------------------------------------------------------------------


def _train(run: RunSummary, running: bool) -> RunSummary:
    path = run.path
    info = read_entries(path / f.RUN)
    config = read_entries(path / f.CONFIG) if (path / f.CONFIG).exists() else {}
    sessions = read_sessions(path)
    learns = not (path / f.POLICY).exists()
    saved = newest_numbered(path / (f.CHECKPOINTS if learns else f.ROUNDS))
    summary = _saved_summary(saved, learns)
    last = sessions[-1] if sessions else None
    updated = _written(path / f.RUN, events_folder(path) / f.EVENTS, *([saved] if saved else []))
    run = replace(
        run,
        state=_train_state(running, last.end if last else ""),
        problem=last.failure if last else "",
        task=text(info, "task"),
        policy="ppo" if learns else text(read_entries(path / f.POLICY), "policy"),
        seed=whole(info, "seed"),
        created=text(info, "created"),
        updated=updated,
        seconds=updated - last.started if updated and last else None,
        done=whole(summary, "round") or 0,
        total=whole(config, "rounds") or whole(summary, "rounds"),
        unit="rounds",
        score=_known(real(summary, "score")),
        best_score=_known(real(summary, "best_score")),
    )
    return _with_newest_round(run) if running else run


def _train_state(running: bool, end: str) -> RunState:
    if running:
        return RunState.RUNNING
    ends = {"FINISHED": RunState.FINISHED, "INTERRUPTED": RunState.INTERRUPTED}
    return ends.get(end, RunState.FAILED if end == "FAILED" else RunState.KILLED)


def _saved_summary(saved: Path | None, learns: bool) -> Entries:
    """Progress in the manifest of a checkpoint, or in a stored round."""
    if saved is None:
        return {}
    if not learns:
        return entries(read_entries(saved), "summary")
    return entries(entries(read_entries(saved / f.CHECKPOINT), "content"), "summary")


def _with_newest_round(run: RunSummary) -> RunSummary:
    """Rounds since the last checkpoint, from the last events."""
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


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


# ---- grow, compare, audit ----------------------------------------------------------------------


def _grow(run: RunSummary, running: bool) -> RunSummary:
    path = run.path
    if running and not (path / f.GROW).exists():  # written a moment after the folder
        return replace(run, state=RunState.RUNNING)
    info = read_entries(path / f.GROW)
    result = read_entries(path / f.RESULT) if (path / f.RESULT).exists() else {}
    search = read_entries(path / f.SEARCH) if (path / f.SEARCH).exists() else {}
    ended = RunState.FINISHED if result.get("complete") is True else RunState.INTERRUPTED
    state = RunState.RUNNING if running else ended if result else RunState.KILLED
    spent = real(search, "compute") / real(info, "length")
    networks = [*objects(result, "networks"), entries(result, "host")]
    pick = next((one for one in networks if one.get("number") == result.get("pick")), {})
    return replace(
        run,
        state=state,
        task=text(info, "model"),
        seed=whole(info, "seed"),
        created=text(info, "created"),
        updated=_written(*(path / name for name in (f.GROW, f.SEARCH, f.RESULT))),
        seconds=_known(real(result or search, "seconds")),
        done=_known(real(result, "runs")) or _known(spent) or 0.0,
        total=_known(real(info, "runs")),
        unit="host runs",
        score=_known(real(pick, "test_score")) if result else None,
        verdict=text(result, "verdict"),
    )


def _compare(run: RunSummary, running: bool) -> RunSummary:
    """A comparison has no record of its end but its report, and no list of policies before it."""
    path, settings = run.path, read_entries(run.path / f.SETTINGS)
    results = list((path / f.POLICIES).glob("*.json"))
    report = path / f.COMPARISON
    updated = _written(path / f.SETTINGS, report, *results)
    ended = report.exists() and report.stat().st_mtime >= (_written(*results) or 0.0)
    state = RunState.FINISHED if ended else RunState.INTERRUPTED
    total = len(objects(read_entries(report), "policies")) if ended else None
    return replace(
        run,
        state=RunState.RUNNING if running else state,
        task=text(settings, "task"),
        seed=whole(settings, "first_seed"),
        created=_stamp((path / f.SETTINGS).stat().st_mtime),
        updated=updated,
        done=total if total is not None else len(results),
        total=total,
        unit="policies",
    )


def _audit(run: RunSummary, running: bool) -> RunSummary:
    path, setup = run.path, read_audit_setup(run.path)
    files = context_files(path)
    done = setup.contexts if (path / f.PACKED).exists() else len(files)
    state = RunState.FINISHED if done >= setup.contexts else RunState.INTERRUPTED
    return replace(
        run,
        state=RunState.RUNNING if running else state,
        task=setup.task,
        seed=setup.seed,
        created=_stamp((path / f.AUDIT).stat().st_mtime),
        updated=_written(path / f.AUDIT, *files),
        done=done,
        total=setup.contexts,
        unit="contexts",
    )


def _stamp(seconds: float) -> str:
    import time

    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


_READERS: Mapping[RunKind, Callable[[RunSummary, bool], RunSummary]] = {
    RunKind.TRAIN: _train,
    RunKind.GROW: _grow,
    RunKind.COMPARE: _compare,
    RunKind.AUDIT: _audit,
}
