"""How do checkpoints lie on disk? Folders that are whole or not there, the manifest written last.

    checkpoints/round-000012/
        agent/                the controller, a save of its own (`PPOAgent.load` reads it)
        state.json            where the engine stands, settings, facts of the task
        history.jsonl         the record of every round so far, one a line
        checkpoint.json       what it is, with size and checksum of every file, and its own
    checkpoints/aside-round-000013/     one that could not be read when the run went on without it

A checkpoint is made under a hidden name, each file synced, and renamed; one that is removed is
renamed first. Whenever the process dies, what stands under a `round-` name is whole. What happens
to it afterwards is found by its checksums. One writer at a time (the folder's lock). No torch here.

All that stand under a `round-` name belong to one history. One that cannot be read is never
removed, because it may be whole again when a disk is back; where the run goes on without it, it is
set aside, and nothing looks at it again.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from esper.leyline.codec import read_record, to_json
from esper.leyline.errors import EsperError
from esper.storage.atomic import sync_folder, write_advice
from esper.storage.manifest import (
    FileRecord,
    FolderFormat,
    NewerFormatError,
    check_file,
    read_bytes,
    read_manifest,
    record_of,
    write_manifest,
)

SCHEMA: Final = 1
"""Grows with every change that old readers would not understand, and with a new field whose default
is not what was done before."""
FORMAT: Final = FolderFormat("esper-checkpoint", SCHEMA, "checkpoint")
MANIFEST: Final = "checkpoint.json"
STATE: Final = "state.json"
KEEP: Final = 3
"""Checkpoints that are kept besides the best one."""

_NAME: Final = re.compile(r"round-(\d{6,})")
_DRAFT: Final = re.compile(rf"\.{_NAME.pattern}\.tmp")
_GONE: Final = re.compile(rf"\.{_NAME.pattern}\.gone")


@dataclass(frozen=True, slots=True)
class Summary:
    """What a checkpoint says of itself, without being loaded."""

    round: int
    """Rounds that are done: episodes of each member."""
    rounds: int
    """Rounds the run was to have when it was written."""
    score: float
    """Mean score of the last round."""
    best_round: int
    """Rounds that were done when the best score so far was reached."""
    best_score: float
    """Highest mean score of a round so far."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of `checkpoint.json`, but for its envelope."""

    summary: Summary
    files: tuple[FileRecord, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """A search among checkpoints."""

    path: Path | None
    """The one that was found, whole; None: there is none."""
    skipped: tuple[str, ...]
    """What is wrong with those that would have come first, a line each."""


class CheckpointStore:
    """The checkpoints of one run: the last few, and the best one."""

    def __init__(self, path: Path, keep: int = KEEP) -> None:
        """`path`: their folder, made when the first one is written."""
        if keep < 1:
            raise EsperError(f"keep={keep}: keep 1 checkpoint or more")
        self.path = path
        self.keep = keep

    # ---- finding ------------------------------------------------------------------------------

    def paths(self) -> list[Path]:
        """All that stand there, oldest first; nothing is said about what is in them."""
        if not self.path.is_dir():
            return []
        names = [name for name in os.listdir(self.path) if _NAME.fullmatch(name)]
        return [self.path / name for name in sorted(names, key=_number)]

    def newest_valid(self) -> Found:
        """The newest one that is whole, every byte checked.

        One of a newer Esper is not passed over but refused: there is nothing wrong with it.
        """
        return _first_whole(reversed(self.paths()))

    def best(self) -> Found:
        """The one with the highest score that is whole; of equals the earliest."""
        scored, unreadable = [], []
        for path in self.paths():
            try:
                scored.append((-_order(read_summary(path).score), path))
            except EsperError as error:
                unreadable.append(str(error))
        scored.sort(key=lambda entry: entry[0])
        found = _first_whole(path for _, path in scored)
        return Found(found.path, (*unreadable, *found.skipped))

    # ---- writing ------------------------------------------------------------------------------

    def set_aside_newer(self, than: Path) -> list[Path]:
        """Take what is newer out of the history, for a run that goes on from `than`; where it is.

        The newest goes first: whenever the process dies, those left are older.
        """
        newer = [path for path in self.paths() if _number(path.name) > _number(than.name)]
        try:
            return [self._set_aside(path) for path in reversed(newer)]
        except OSError as error:
            raise EsperError(
                f"cannot set unreadable checkpoints aside in {self.path}: "
                f"{error.strerror or error}; {write_advice(error)}, then resume again"
            ) from error

    def _set_aside(self, path: Path) -> Path:
        """Give a checkpoint that cannot be read the first name of its own that is free."""
        place, number = path.with_name(f"aside-{path.name}"), 1
        while place.exists():
            number += 1
            place = path.with_name(f"aside-{path.name}-{number}")
        path.rename(place)
        sync_folder(self.path)
        return place

    def write(self, summary: Summary, fill: Callable[[Path], None]) -> Path:
        """Keep what `fill` puts into a folder as the checkpoint of that round; its path.

        A failure is one line and leaves all others as they were. What is too old goes.
        """
        final = self.path / f"round-{summary.round:06d}"
        draft = self.path / f".{final.name}.tmp"
        try:
            self._make_room()
            draft.mkdir()
            fill(draft)
            _write_manifest(draft, summary)
            if final.exists():  # done again
                self._clear(final)
            draft.rename(final)
            sync_folder(self.path)
        except BaseException as error:
            shutil.rmtree(draft, ignore_errors=True)
            cause = error.__cause__ if isinstance(error, EsperError) else error
            if isinstance(cause, OSError):
                raise self._unwritable(summary.round, cause) from cause
            raise
        with contextlib.suppress(OSError):  # the new one is whole; the next one tries again
            self._remove_old(summary.round)
        return final

    def _unwritable(self, number: int, error: OSError) -> EsperError:
        return EsperError(
            f"cannot save round {number} to {self.path}: {error.strerror or error}; "
            f"{write_advice(error)}, then go on with --resume {self.path.parent} (older "
            f"checkpoints are as they were)"
        )

    def _make_room(self) -> None:
        """Make the folder; remove what an interrupted write or removal left in it."""
        if not self.path.is_dir():
            self.path.mkdir(parents=True)
            sync_folder(self.path.parent)
        for name in os.listdir(self.path):
            if _DRAFT.fullmatch(name) or _GONE.fullmatch(name):
                shutil.rmtree(self.path / name)

    def _clear(self, path: Path) -> None:
        """Make way for another checkpoint of that name."""
        try:
            verify(path)
        except EsperError:
            self._set_aside(path)
        else:
            path.rename(_gone(path))

    def _put_away(self, path: Path) -> None:
        """Remove a checkpoint; it is none from the first moment on."""
        path.rename(_gone(path))
        shutil.rmtree(_gone(path))

    def _remove_old(self, written: int) -> None:
        """Keep the last few and the best; what is newer than `written` is another's affair."""
        for name in filter(_GONE.fullmatch, os.listdir(self.path)):
            shutil.rmtree(self.path / name)
        summaries = {}
        for path in self.paths():
            if _number(path.name) > written:
                continue
            try:
                summaries[path] = _check_sizes(path).summary
            except EsperError:
                if _number(path.name) < written:  # there is a newer one
                    self._set_aside(path)
        if not summaries:
            return
        best = max(summaries, key=lambda path: _order(summaries[path].score))
        for path in [*summaries][: -self.keep]:
            if path != best:
                self._put_away(path)


def _gone(path: Path) -> Path:
    """What a checkpoint is called that is about to be removed."""
    return path.with_name(f".{path.name}.gone")


def _number(name: str) -> int:
    match = _NAME.fullmatch(name)
    assert match is not None  # only called for names that match
    return int(match[1])


def _order(score: float) -> float:
    """Scores as they are ranked: one that is not a number is below all."""
    return -math.inf if math.isnan(score) else score


def _first_whole(paths: Iterator[Path]) -> Found:
    skipped = []
    for path in paths:
        try:
            verify(path)
        except NewerFormatError:
            raise
        except EsperError as error:
            skipped.append(str(error))
        else:
            return Found(path, tuple(skipped))
    return Found(None, tuple(skipped))


# ---- one checkpoint -----------------------------------------------------------------------------


def verify(path: Path) -> Summary:
    """Check every byte of a checkpoint; what is wrong with it is refused in one line."""
    manifest = _check_sizes(path)
    for file in manifest.files:
        where = path / file.name
        check_file(file, where, read_bytes(where))
    return manifest.summary


def read_summary(path: Path) -> Summary:
    """What a checkpoint says of itself; its files are not looked at."""
    return _read_contents(path).summary


def _read_contents(path: Path) -> Manifest:
    where = path / MANIFEST
    return read_record(Manifest, read_manifest(where, FORMAT).get("content"), str(where))


def _check_sizes(path: Path) -> Manifest:
    """The manifest of a checkpoint whose files are all there, in their sizes."""
    manifest = _read_contents(path)
    for file in manifest.files:
        parts = PurePosixPath(file.name).parts
        if not parts or ".." in parts or parts[0] == "/":
            raise EsperError(f"{path / MANIFEST}: {file.name!r} is no file of a checkpoint")
        try:
            size = (path / file.name).stat().st_size
        except OSError as error:
            raise EsperError(f"{path / file.name} is missing ({error.strerror})") from None
        if size != file.bytes:
            raise EsperError(f"{path / file.name} is damaged, {size} bytes of {file.bytes}")
    return manifest


def _write_manifest(folder: Path, summary: Summary) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    records = [record_of(p.relative_to(folder).as_posix(), p.read_bytes()) for p in files]
    content = to_json(Manifest(summary, tuple(records)))
    write_manifest(folder / MANIFEST, FORMAT, {"content": content})
