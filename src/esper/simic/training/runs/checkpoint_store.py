"""On-disk store of a run's checkpoints: atomic folders with checksums, retention and search.

    checkpoints/round-000012/
        agent/                the controller (`PPOAgent.load` reads it)
        state.json            engine state, settings, task facts
        history.jsonl         one record per round
        checkpoint.json       the manifest: summary, size and checksum of every file; written last
    checkpoints/aside-round-000013/     an unreadable checkpoint that a resumed run skipped

A checkpoint is written under a hidden name, each file synced, then renamed; to delete one, it is
renamed first. Every `round-` folder is therefore complete, whenever the process dies; later damage
is detected by its checksums. One writer at a time (the folder lock). Does not import torch.

All `round-` folders belong to one history. An unreadable one is never deleted, because it may be
readable again once a disk is back; if the run resumes without it, it is moved aside and ignored
from then on.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from esper.leyline.codec import LATER, read_record, to_json
from esper.leyline.errors import EsperError
from esper.storage import run_files
from esper.storage.atomic import sync_folder, write_advice
from esper.storage.manifest import (
    FileRecord,
    FolderFormat,
    check_file,
    read_bytes,
    read_manifest,
    record_of,
    write_manifest,
)
from esper.storage.sealed_json import OtherSchemaError

SCHEMA: Final = 1
"""Incremented by every change of the files."""
FORMAT: Final = FolderFormat("esper-checkpoint", SCHEMA, "checkpoint")
MANIFEST: Final = run_files.CHECKPOINT
STATE: Final = "state.json"
KEEP: Final = 3
"""Default number of checkpoints kept besides the best."""

_NAME: Final = re.compile(r"round-(\d{6,})")
_DRAFT: Final = re.compile(rf"\.{_NAME.pattern}\.tmp")
_REMOVED: Final = re.compile(rf"\.{_NAME.pattern}\.gone")


@dataclass(frozen=True, slots=True)
class Summary:
    """Progress and scores of a checkpoint, readable without loading it."""

    round: int
    """Rounds completed."""
    rounds: int
    """Total rounds of the run when it was written."""
    score: float
    """Mean score of the last round."""
    best_round: int
    """Rounds completed when the best score was reached; 0: there is none."""
    best_score: float
    """Mean score of that round; NaN: there is none."""
    varied: bool = field(default=False, metadata=LATER)
    """Whether every round draws budget and data of its own: mean scores then say how hard a draw
    was, so none is the best, and the latest checkpoint is worth most."""

    @property
    def worth(self) -> float:
        """What the best checkpoint has most of."""
        if self.varied:
            return self.round
        return -math.inf if math.isnan(self.score) else self.score


@dataclass(frozen=True, slots=True)
class _Manifest:
    """The content of `checkpoint.json` without its envelope."""

    summary: Summary
    files: tuple[FileRecord, ...]


@dataclass(frozen=True, slots=True)
class CheckpointSearch:
    """Result of a search for a valid checkpoint."""

    path: Path | None
    """The valid checkpoint; None if there is none."""
    skipped: tuple[str, ...]
    """One error line per invalid checkpoint that was skipped."""


class CheckpointStore:
    """The checkpoints of one run: the last `keep` and the best."""

    def __init__(self, path: Path, keep: int = KEEP) -> None:
        """`path`: the checkpoint folder, created on the first write."""
        if keep < 1:
            raise EsperError(f"keep={keep}: keep 1 checkpoint or more")
        self.path = path
        self.keep = keep

    # ---- finding ------------------------------------------------------------------------------

    def paths(self) -> list[Path]:
        """Paths of all checkpoints, oldest first, not verified."""
        if not self.path.is_dir():
            return []
        names = [name for name in os.listdir(self.path) if _NAME.fullmatch(name)]
        return [self.path / name for name in sorted(names, key=_number)]

    def newest_valid(self) -> CheckpointSearch:
        """Find the newest checkpoint whose checksums match.

        Raises for one of another schema instead of skipping it: it is not damaged.
        """
        return _first_valid(reversed(self.paths()))

    def best(self) -> CheckpointSearch:
        """Find the valid checkpoint that is worth most; ties go to the earliest."""
        scored, unreadable = [], []
        for path in self.paths():
            try:
                scored.append((-_read_manifest(path).summary.worth, path))
            except EsperError as error:
                unreadable.append(str(error))
        scored.sort(key=lambda entry: entry[0])
        found = _first_valid(path for _, path in scored)
        return CheckpointSearch(found.path, (*unreadable, *found.skipped))

    # ---- writing ------------------------------------------------------------------------------

    def move_newer_aside(self, than: Path) -> list[Path]:
        """Move checkpoints newer than `than` aside before resuming from it; returns the new paths.

        Newest first, so that the history stays contiguous whenever the process dies.
        """
        newer = [path for path in self.paths() if _number(path.name) > _number(than.name)]
        try:
            return [self._move_aside(path) for path in reversed(newer)]
        except OSError as error:
            raise EsperError(
                f"cannot set unreadable checkpoints aside in {self.path}: "
                f"{error.strerror or error}; {write_advice(error)}, then resume again"
            ) from error

    def _move_aside(self, path: Path) -> Path:
        """Rename a checkpoint to the first free `aside-` name."""
        place, number = path.with_name(f"aside-{path.name}"), 1
        while place.exists():
            number += 1
            place = path.with_name(f"aside-{path.name}-{number}")
        path.rename(place)
        sync_folder(self.path)
        return place

    def write(self, summary: Summary, write_files: Callable[[Path], None]) -> Path:
        """Write the checkpoint of a round and delete outdated ones; returns its path.

        `write_files` is called with the folder to write to. A failure raises a one-line error and
        leaves existing checkpoints unchanged.
        """
        final = self.path / f"round-{summary.round:06d}"
        draft = self.path / f".{final.name}.tmp"
        try:
            self._prepare_folder()
            draft.mkdir()
            write_files(draft)
            _write_manifest(draft, summary)
            if final.exists():  # the round was repeated
                self._replace_existing(final)
            draft.rename(final)
            sync_folder(self.path)
        except BaseException as error:
            shutil.rmtree(draft, ignore_errors=True)
            cause = error.__cause__ if isinstance(error, EsperError) else error
            if isinstance(cause, OSError):
                raise self._unwritable(summary.round, cause) from cause
            raise
        with contextlib.suppress(OSError):  # the new one is complete; the next write retries
            self._remove_old(summary.round)
        return final

    def _unwritable(self, number: int, error: OSError) -> EsperError:
        folder = shlex.quote(str(self.path.parent))
        return EsperError(
            f"cannot save round {number} to {self.path}: {error.strerror or error}; "
            f"{write_advice(error)}, then resume with --resume {folder} (older checkpoints are "
            f"unchanged)"
        )

    def _prepare_folder(self) -> None:
        """Create the folder; delete leftovers of interrupted writes and deletions."""
        if not self.path.is_dir():
            self.path.mkdir(parents=True)
            sync_folder(self.path.parent)
        for name in os.listdir(self.path):
            if _DRAFT.fullmatch(name) or _REMOVED.fullmatch(name):
                shutil.rmtree(self.path / name)

    def _replace_existing(self, path: Path) -> None:
        """Free the name: delete a valid checkpoint, move an invalid one aside."""
        try:
            verify(path)
        except EsperError:
            self._move_aside(path)
        else:
            path.rename(_removed_name(path))

    def _remove(self, path: Path) -> None:
        """Delete a checkpoint; renamed first, so that it is never half deleted."""
        path.rename(_removed_name(path))
        shutil.rmtree(_removed_name(path))

    def _remove_old(self, written: int) -> None:
        """Delete all but the last `keep` and the best, ignoring those newer than `written`."""
        for name in filter(_REMOVED.fullmatch, os.listdir(self.path)):
            shutil.rmtree(self.path / name)
        summaries = {}
        for path in self.paths():
            if _number(path.name) > written:
                continue
            try:
                summaries[path] = _check_sizes(path).summary
            except EsperError:
                if _number(path.name) < written:  # there is a newer one
                    self._move_aside(path)
        if not summaries:
            return
        best = max(summaries, key=lambda path: summaries[path].worth)
        for path in [*summaries][: -self.keep]:
            if path != best:
                self._remove(path)


def _removed_name(path: Path) -> Path:
    """Name of a checkpoint while it is being deleted."""
    return path.with_name(f".{path.name}.gone")


def _number(name: str) -> int:
    match = _NAME.fullmatch(name)
    assert match is not None  # callers pass matching names only
    return int(match[1])


def _first_valid(paths: Iterator[Path]) -> CheckpointSearch:
    skipped = []
    for path in paths:
        try:
            verify(path)
        except OtherSchemaError:
            raise
        except EsperError as error:
            skipped.append(str(error))
        else:
            return CheckpointSearch(path, tuple(skipped))
    return CheckpointSearch(None, tuple(skipped))


# ---- one checkpoint -----------------------------------------------------------------------------


def verify(path: Path) -> Summary:
    """Verify all checksums of a checkpoint; raises a one-line error on damage."""
    manifest = _check_sizes(path)
    for file in manifest.files:
        where = path / file.name
        check_file(file, where, read_bytes(where))
    return manifest.summary


def _read_manifest(path: Path) -> _Manifest:
    where = path / MANIFEST
    return read_record(_Manifest, read_manifest(where, FORMAT).get("content"), str(where))


def _check_sizes(path: Path) -> _Manifest:
    """Read the manifest and check that every file exists with the right size."""
    manifest = _read_manifest(path)
    for file in manifest.files:
        parts = PurePosixPath(file.name).parts
        if not parts or ".." in parts or parts[0] == "/":
            raise EsperError(f"{path / MANIFEST}: {file.name!r} is not a checkpoint file")
        try:
            size = (path / file.name).stat().st_size
        except OSError as error:
            raise EsperError(f"{path / file.name} is missing ({error.strerror})") from None
        if size != file.bytes:
            raise EsperError(f"{path / file.name} is damaged: {size} bytes, expected {file.bytes}")
    return manifest


def _write_manifest(folder: Path, summary: Summary) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    records = [record_of(p.relative_to(folder).as_posix(), p.read_bytes()) for p in files]
    content = to_json(_Manifest(summary, tuple(records)))
    write_manifest(folder / MANIFEST, FORMAT, {"content": content})
