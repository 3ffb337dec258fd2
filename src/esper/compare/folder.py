"""The output folder of a comparison.

OUT/settings.json          the shared settings; a mismatch raises
OUT/policies/NAME.json     identity and results of one policy
OUT/trackers/              files of trackers
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import esper
from esper.compare.comparison import ComparisonSettings, PolicyResult
from esper.compare.config import Compare
from esper.compare.policies import Identity
from esper.leyline.codec import LATER, read_record, to_json
from esper.leyline.errors import EsperError
from esper.storage.atomic import require_not_folders, require_writable, write_atomic
from esper.storage.run_files import POLICIES as POLICIES
from esper.storage.run_files import SETTINGS as SETTINGS
from esper.storage.sealed_json import differences, json_bytes, read_document, sealed_bytes
from esper.tasks.spec import TaskSpec
from esper.tasks.task_files import task_file_digest
from esper.tolaria.runtime import parse_device


@dataclass(frozen=True, slots=True, eq=False)
class SavedResult:
    """The result file of one policy."""

    label: str
    """Label when it was computed; not part of its identity."""
    identity: Identity
    result: PolicyResult
    ended: str = field(default="", metadata=LATER)
    """When it was saved, in UTC."""


class ReportPaths(NamedTuple):
    """Paths of the report files."""

    report: Path
    numbers: Path


def report_paths(folder: Path) -> ReportPaths:
    """Report paths in the output folder."""
    return ReportPaths(*(folder / f"compare.{end}" for end in ("md", "json")))


def settings_of_comparison(config: Compare, spec: TaskSpec) -> ComparisonSettings:
    """The settings shared by all policies."""
    return ComparisonSettings(
        task=spec.name,
        data=config.task.data,
        seeds=config.seeds,
        first_seed=config.first_seed,
        envs=config.population_size(spec),
        slots=spec.slots,
        blueprints=spec.blueprints,
        episode_length=spec.episode_length,
        batches_per_step=spec.batches_per_step,
        batch_size=spec.batch_size,
        rent=config.task.rent,
        score=spec.score,
        optim=spec.optim,
        augmentation=spec.augmentation,
        device=parse_device(config.device).type,
        profile=config.profile,
        executor=config.executor,
        precision=config.precision,
        esper=esper.__version__,
        torch=version("torch"),
        kernels=config.kernels,
        context=spec.context,
        host=config.task.host or "",
        task_file=task_file_digest(config.task.name),
    )


def open_folder(folder: Path, settings: ComparisonSettings) -> None:
    """Create the folder, or check that it holds a comparison with the same settings."""
    path = folder / SETTINGS
    require_not_folders((path, *report_paths(folder), folder / POLICIES / "any"))
    require_writable(path, "--out")
    (folder / POLICIES).mkdir(exist_ok=True)
    wanted = to_json(settings)
    if path.exists():
        different = next(differences(read_document(path), wanted), None)
        if different is not None:
            # What was added later is not there, and cannot be set back.
            back = "" if different.before is None else "set it back or "
            raise EsperError(
                f"{folder} holds a comparison with other settings: {different.refusal}; {back}"
                f"choose another --out"
            )
        return
    try:
        write_atomic(path, json_bytes(wanted))
    except OSError as error:
        raise unwritable(folder, error) from error


def result_path(folder: Path, identity: Identity) -> Path:
    """Result file of a policy; its name contains a hash of the identity."""
    known = json.dumps(to_json(identity), sort_keys=True).encode()
    name = re.sub(r"[^A-Za-z0-9]+", "-", identity.policy).strip("-")[:60]
    return folder / POLICIES / f"{name}-{hashlib.sha256(known).hexdigest()[:10]}.json"


def save_result(folder: Path, saved: SavedResult) -> None:
    """Write the result file of a policy with a checksum."""
    try:
        write_atomic(result_path(folder, saved.identity), sealed_bytes(saved))
    except OSError as error:
        raise unwritable(folder, error) from error


def unwritable(folder: Path, error: OSError) -> EsperError:
    """Error for a result that cannot be written."""
    return EsperError(
        f"cannot write to {folder} ({error.strerror or error}): free some space there; finished "
        f"policies are saved, and the same command resumes"
    )


def read_result(path: Path, identity: Identity) -> SavedResult:
    """Read a result file; raises if it is damaged or of another policy."""
    try:
        content = read_document(path)
        saved = read_record(SavedResult, content, str(path))
    except EsperError as error:
        raise EsperError(f"{error}; remove that file to compute it again") from None
    if saved.identity != identity:
        raise EsperError(f"{path} belongs to another policy; remove that file to compute it again")
    return saved
