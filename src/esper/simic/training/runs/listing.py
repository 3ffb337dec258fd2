"""Lists runs and their progress from their folders, without importing torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from esper.leyline.errors import EsperError
from esper.simic.training.runs.checkpoint_store import CheckpointStore, Summary, read_summary
from esper.simic.training.runs.folder import (
    RunInfo,
    SessionEnd,
    checkpoints_dir,
    is_grow_run,
    read_config,
    read_info,
    require_run,
)
from esper.simic.training.runs.policy_file import is_policy_run, read_policy
from esper.simic.training.runs.round_store import RoundStore
from esper.storage.folder_lock import is_locked
from esper.tasks.task_files import absolute_reference


class RunState(Enum):
    """State of a run."""

    RUNNING = "running"
    """A process holds its lock."""
    FINISHED = "finished"
    """All rounds are done."""
    INTERRUPTED = "interrupted"
    """Stopped by a signal; a checkpoint was saved."""
    CRASHED = "crashed"
    """Killed, or ended by an exception."""
    BROKEN = "broken"
    """The folder cannot be read."""


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One run of the list."""

    path: Path
    """Run folder."""
    state: RunState
    """State of the run."""
    problem: str
    """Error of the folder or of the run; empty if none."""
    info: RunInfo | None
    """Content of `run.json`; None if the folder is broken."""
    summary: Summary | None
    """Summary of the newest checkpoint; None if there is none."""
    rounds: int | None
    """Total rounds of the run; None if the folder is broken."""

    @property
    def created(self) -> str:
        """Creation time in UTC; empty if unknown."""
        return "" if self.info is None else self.info.created


def list_runs(root: Path) -> list[ListedRun]:
    """List all training runs in `root`, oldest first; broken ones carry their `problem`.

    Runs of `esper.grow` are left out: `growing.listing` lists them.
    """
    folders = [path for path in run_folders(root) if not is_grow_run(path)]
    return sorted(map(listed_run, folders), key=lambda run: (run.created, run.path.name))


def run_folders(root: Path) -> list[Path]:
    """All folders in `root` that may hold a run."""
    if not root.is_dir():
        found = "is a file" if root.exists() else "does not exist"
        raise EsperError(f"{root} {found}: give the folder that runs are in (--runs)")
    return [path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")]


def newest_run(
    root: Path,
    task: str | None = None,
    name: str | None = None,
    seed: int | None = None,
    policy: str | None = None,
) -> Path:
    """Return the newest run in `root`, filtered by task, name and seed if given.

    `policy`: one that does not learn; None: runs of a learner.
    """
    given = {"task": task and absolute_reference(task), "name": name, "seed": seed}
    filters = {what: value for what, value in given.items() if value is not None}
    for run in reversed(list_runs(root)):
        if run.info is None:
            continue
        info = replace(run.info, task=absolute_reference(run.info.task))
        fits = all(getattr(info, what) == value for what, value in filters.items())
        if fits and _policy_of(run.path) == policy:
            return run.path
    filters = {"policy": policy, **filters} if policy else filters
    wanted = ", ".join(f"{what} {value}" for what, value in filters.items())
    raise EsperError(f"{root} holds no run{f' of {wanted}' if wanted else ''} to resume: start one")


def _policy_of(path: Path) -> str | None:
    return read_policy(path).policy if is_policy_run(path) else None


def listed_run(path: Path) -> ListedRun:
    """Read the state and the progress of one run."""
    try:
        require_run(path)
        info, config = read_info(path), read_config(path)
        summary, damaged = _progress(path)
    except (EsperError, OSError) as error:
        return ListedRun(path, RunState.BROKEN, str(error), None, None, None)
    state, failure = _state_of(path, info)
    return ListedRun(path, state, failure or damaged, info, summary, config.rounds)


def _progress(path: Path) -> tuple[Summary | None, str]:
    """Summary of the newest checkpoint, or of the newest round where nothing learns."""
    if is_policy_run(path):
        return RoundStore(path).newest_summary()
    return _newest_summary(CheckpointStore(checkpoints_dir(path)).paths())


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
    """Summary of the newest readable checkpoint, and the error of the newest one if unreadable."""
    problem = ""
    for path in reversed(paths):
        try:
            return read_summary(path), problem
        except EsperError as error:
            problem = problem or str(error)
    return None, problem
