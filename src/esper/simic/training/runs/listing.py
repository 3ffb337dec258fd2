"""Finds the run that a command means when it names none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from esper.leyline.errors import EsperError
from esper.simic.training.runs.folder import RunInfo, is_grow_run, read_info, require_run
from esper.simic.training.runs.policy_file import is_policy_run, read_policy
from esper.tasks.task_files import absolute_reference


def newest_run(
    root: Path,
    task: str | None = None,
    name: str | None = None,
    seed: int | None = None,
    policy: str | None = None,
) -> Path:
    """Return the newest training run in `root`, filtered by task, name and seed if given.

    `policy`: one that does not learn; None: runs of a learner.
    """
    given = {"task": task and absolute_reference(task), "name": name, "seed": seed}
    filters = {what: value for what, value in given.items() if value is not None}
    for path, run in reversed(_training_runs(root)):
        info = replace(run, task=absolute_reference(run.task))
        fits = all(getattr(info, what) == value for what, value in filters.items())
        if fits and _policy_of(path) == policy:
            return path
    filters = {"policy": policy, **filters} if policy else filters
    wanted = ", ".join(f"{what} {value}" for what, value in filters.items())
    raise EsperError(f"{root} holds no run{f' of {wanted}' if wanted else ''} to resume: start one")


def _training_runs(root: Path) -> list[tuple[Path, RunInfo]]:
    """Readable training runs in `root`, oldest first."""
    if not root.is_dir():
        found = "is a file" if root.exists() else "does not exist"
        raise EsperError(f"{root} {found}: give the folder that runs are in (--runs)")
    runs = []
    for path in root.iterdir():
        if path.is_dir() and not path.name.startswith(".") and not is_grow_run(path):
            try:
                require_run(path)
                runs.append((path, read_info(path)))
            except (EsperError, OSError):
                continue
    return sorted(runs, key=lambda run: (run[1].created, run[0].name))


def _policy_of(path: Path) -> str | None:
    return read_policy(path).policy if is_policy_run(path) else None
