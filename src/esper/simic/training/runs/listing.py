"""Which runs are there, and how far are they? Read from their folders, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from esper.leyline.errors import EsperError
from esper.simic.training.runs.checkpoint_store import CheckpointStore, Summary, read_summary
from esper.simic.training.runs.folder import (
    RunInfo,
    SessionEnd,
    checkpoints_of,
    read_config,
    read_info,
    require_run,
)
from esper.storage.folder_lock import is_locked


class RunState(Enum):
    """What is going on in a run folder."""

    RUNNING = "running"
    """A process trains there now."""
    FINISHED = "finished"
    """All rounds are done."""
    INTERRUPTED = "interrupted"
    """It was asked to stop, and saved."""
    CRASHED = "crashed"
    """It was killed, or an error ended it."""
    BROKEN = "broken"
    """The folder cannot be read."""


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A line of the list."""

    path: Path
    """The folder."""
    state: RunState
    """What is going on there."""
    problem: str
    """What is wrong with the folder, or the error that ended the run; empty: nothing."""
    info: RunInfo | None
    """Task, name, seed and time; None where the folder is broken."""
    summary: Summary | None
    """Rounds done, last and best score, as of the newest checkpoint; None: there is none yet."""
    rounds: int | None
    """Rounds it is to have; None where the folder is broken."""

    @property
    def created(self) -> str:
        """When it began, in UTC; empty where that is not known."""
        return "" if self.info is None else self.info.created


def list_runs(root: Path) -> list[ListedRun]:
    """Every run in a folder of runs, oldest first; broken ones say what is wrong with them."""
    if not root.is_dir():
        found = "is a file" if root.exists() else "does not exist"
        raise EsperError(f"{root} {found}: give the folder that runs are in (--runs)")
    folders = [path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")]
    return sorted(map(_listed, folders), key=lambda run: (run.created, run.path.name))


def newest_run(
    root: Path, task: str | None = None, name: str | None = None, seed: int | None = None
) -> Path:
    """The youngest run in a folder of runs, of this task, name and seed where they are given."""
    wanted = {"task": task, "name": name, "seed": seed}
    asked = {what: value for what, value in wanted.items() if value is not None}
    for run in reversed(list_runs(root)):
        if run.info is None:
            continue
        if all(getattr(run.info, what) == value for what, value in asked.items()):
            return run.path
    told = ", ".join(f"{what} {value}" for what, value in asked.items())
    raise EsperError(f"{root} holds no run{f' of {told}' if told else ''} to resume: start one")


def _listed(path: Path) -> ListedRun:
    try:
        require_run(path)
        info, config = read_info(path), read_config(path)
        summary, damaged = _newest_summary(CheckpointStore(checkpoints_of(path)).paths())
    except (EsperError, OSError) as error:
        return ListedRun(path, RunState.BROKEN, str(error), None, None, None)
    state, failure = _state_of(path, info)
    return ListedRun(path, state, failure or damaged, info, summary, config.rounds)


def _state_of(path: Path, info: RunInfo) -> tuple[RunState, str]:
    if is_locked(path):
        return RunState.RUNNING, ""
    last = info.sessions[-1] if info.sessions else None
    if last is not None and last.end is SessionEnd.FINISHED:
        return RunState.FINISHED, ""
    if last is not None and last.end is SessionEnd.INTERRUPTED:
        return RunState.INTERRUPTED, ""
    return RunState.CRASHED, "" if last is None else last.failure


def _newest_summary(paths: Sequence[Path]) -> tuple[Summary | None, str]:
    """Of the newest checkpoint that can be read, and what is wrong with the newest of all."""
    problem = ""
    for path in reversed(paths):
        try:
            return read_summary(path), problem
        except EsperError as error:
            problem = problem or str(error)
    return None, problem
