"""`policy.json`: which policy a run folder was trained under, unless it learns."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from esper.leyline.codec import read_record, to_json
from esper.leyline.errors import EsperError, shown
from esper.simic.training.runs.resume_command import resume_command
from esper.storage.atomic import write_atomic
from esper.storage.run_files import POLICY as POLICY
from esper.storage.sealed_json import read_document, seal
from esper.tamiyo.grammar import ParsedPolicy
from esper.tamiyo.heuristic import HeuristicConfig


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """The policy of a run; its rounds are comparable only if all of it is the same."""

    policy: str
    """The policy as given, without its label."""
    file: str = ""
    """SHA-256 of the file that the policy names; empty if it names none."""
    rules: HeuristicConfig | None = None
    """All rules of the heuristic; None for other policies."""

    @classmethod
    def of(cls, parsed: ParsedPolicy, rules: HeuristicConfig | None) -> RunPolicy:
        """Describe a policy of the command line."""
        path, digest = parsed.path, ""
        if path is not None and path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return cls(parsed.text, digest, rules)


def is_policy_run(folder: Path) -> bool:
    """Whether a run folder belongs to a policy that does not learn."""
    return (folder / POLICY).exists()


def read_policy(folder: Path) -> RunPolicy:
    """Read `policy.json` of a run."""
    path = folder / POLICY
    if not path.exists():
        raise EsperError(f"{folder} is a run of ppo: resume it with: {resume_command(folder, '')}")
    return read_record(RunPolicy, read_document(path), str(path))


def write_policy(folder: Path, policy: RunPolicy) -> None:
    """Write `policy.json`."""
    content = to_json(policy)
    assert isinstance(content, dict)  # records encode to objects
    write_atomic(folder / POLICY, (json.dumps(seal(content), indent=1) + "\n").encode())


def check_policy(folder: Path, policy: RunPolicy) -> None:
    """Raise unless the run in `folder` was trained under this policy."""
    before = read_policy(folder)
    if before.policy != policy.policy:
        command = resume_command(folder, "", before.policy)
        raise EsperError(f"{folder} is a run of {shown(before.policy)}: resume it with: {command}")
    if before.file != policy.file:
        raise EsperError(
            f"resume of {folder}: the file of policy {shown(policy.policy)} has changed: start a "
            f"new run"
        )
    if before.rules == policy.rules or before.rules is None or policy.rules is None:
        return
    for name in policy.rules.__dataclass_fields__:
        then, now = getattr(before.rules, name), getattr(policy.rules, name)
        if then != now:
            raise EsperError(
                f"resume of {folder}: heuristic.{name} is {shown(then)} there and {shown(now)} "
                f"here: resume with the same value, or start a new run"
            )
