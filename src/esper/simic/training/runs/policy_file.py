"""`policy.json`: which policy a run folder was trained under, unless it learns."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from esper.leyline.codec import read_record
from esper.leyline.errors import EsperError, shown
from esper.simic.training.runs.folder import RunInfo, read_info, require_run
from esper.storage.atomic import require_folder, write_atomic
from esper.storage.run_files import POLICY as POLICY
from esper.storage.sealed_json import read_document, sealed_bytes
from esper.storage.sessions import resume_training
from esper.tamiyo.grammar import ParsedPolicy
from esper.tasks.task_files import absolute_reference

LEARNER: Final = "ppo"
"""The policy that learns, as commands, events and tables name it."""


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """The policy of a run; its rounds are comparable only if all of it is the same."""

    policy: str
    """The policy as given, without its label."""
    file: str = ""
    """SHA-256 of the file that the policy names; empty if it names none."""

    @classmethod
    def of(cls, parsed: ParsedPolicy) -> RunPolicy:
        """Describe a policy of the command line."""
        path, digest = parsed.path, ""
        if path is not None and path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return cls(parsed.text, digest)


def is_policy_run(folder: Path) -> bool:
    """Whether a run folder belongs to a policy that does not learn."""
    return (folder / POLICY).exists()


def read_policy(folder: Path) -> RunPolicy:
    """Read `policy.json` of a run."""
    path = folder / POLICY
    if not path.exists():
        command = resume_training(folder, LEARNER)
        raise EsperError(f"{folder} is a run of {LEARNER}: resume it with: {command}")
    return read_record(RunPolicy, read_document(path), str(path))


def write_policy(folder: Path, policy: RunPolicy) -> None:
    """Write `policy.json`."""
    write_atomic(folder / POLICY, sealed_bytes(policy))


def check_policy(folder: Path, policy: RunPolicy) -> None:
    """Raise unless the run in `folder` was trained under this policy."""
    before = read_policy(folder)
    if before.policy != policy.policy:
        command = resume_training(folder, before.policy)
        raise EsperError(f"{folder} is a run of {shown(before.policy)}: resume it with: {command}")
    if before.file != policy.file:
        raise EsperError(
            f"resume of {folder}: the file of policy {shown(policy.policy)} has changed: start a "
            f"new run"
        )


# ---- the run that a command means when it names none --------------------------------------------


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
        found = read_policy(path).policy if fits and is_policy_run(path) else None
        if fits and found == policy:
            return path
    filters = {"policy": policy, **filters} if policy else filters
    wanted = ", ".join(f"{what} {value}" for what, value in filters.items())
    raise EsperError(f"{root} holds no run{f' of {wanted}' if wanted else ''} to resume: start one")


def _training_runs(root: Path) -> list[tuple[Path, RunInfo]]:
    """Readable training runs in `root`, oldest first."""
    require_folder(root, "give the folder that runs are in (--runs)")
    runs = []
    for path in root.iterdir():
        if path.is_dir() and not path.name.startswith("."):
            try:
                require_run(path)
                runs.append((path, read_info(path)))
            except (EsperError, OSError):
                continue
    return sorted(runs, key=lambda run: (run[1].created, run[0].name))
