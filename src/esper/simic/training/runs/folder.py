"""Run folders: layout, settings, session records and the lock of one training process.

    runs/<task>__<name>__<seed>__<time>/
        run.json        task, name, seed, and each training session: versions, how it ended
        config.json     the `TrainingConfig`
        retention.json  checkpoint interval, numbers of checkpoints and members kept, unless default
        session.json    data folder, telemetry level and folder, trackers, evaluation members,
                        unless default
        lock            held by the training process
        checkpoints/    `CheckpointStore`; a policy that does not learn has `policy.json` and
                        `rounds/` instead (`policy_session.py`)
        members/        the best members of all rounds (`kept_members.py`)
        source/         the task file, if the task is one
        events.jsonl, events/     telemetry
        trackers/       files of TensorBoard, W&B and MLflow, and which runs these are there
        report/         numbers of the evaluation and of all rounds

A folder is created under a hidden name and renamed when complete. Its JSON files carry a checksum;
a mismatch raises, because these files decide how a run resumes. Does not import torch, so that
listing runs is fast.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, TypeVar

from esper.leyline.codec import LATER, read_record
from esper.leyline.errors import EsperError, shown
from esper.leyline.telemetry import QUEUE_SIZE
from esper.nissa.trackers.names import TrackerName
from esper.simic.training.config import TrainingConfig
from esper.simic.training.runs.checkpoint_store import KEEP, STATE, CheckpointStore
from esper.simic.training.runs.kept_members import KEEP_MEMBERS
from esper.simic.training.runs.sources import copy_user_file
from esper.storage import run_files
from esper.storage.atomic import require_folder, sync_folder, write_advice, write_atomic
from esper.storage.folder_lock import FolderLock
from esper.storage.provenance import git_revision, versions
from esper.storage.run_files import CONFIG, RETENTION, RUN, SESSION
from esper.storage.run_files import RUN_SCHEMA as SCHEMA
from esper.storage.sealed_json import read_document, require_schema, sealed_bytes
from esper.storage.sessions import SessionEnd as SessionEnd
from esper.storage.sessions import one_line, utc_now
from esper.tasks.task_files import task_file_digest

LevelName = Literal["off", "minimal", "normal", "debug"]
"""Lower-case name of a `TelemetryLevel`."""

MAX_NAME_CHARS: Final = 80
"""Maximum characters of a run name and of the task part of its folder name."""

_Record = TypeVar("_Record")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class _Session:
    """One process that trained, or is training, the run."""

    started: str
    """UTC."""
    host: str
    """Host name of the machine."""
    pid: int
    """Process id."""
    versions: tuple[tuple[str, str], ...]
    """(package, version) pairs that results depend on."""
    revision: str | None
    """Git commit of Esper's source, with `-dirty` if files differ; None outside a repository."""
    from_round: int
    """Rounds completed before this session."""
    changed: tuple[str, ...]
    """Settings changed for this session, as `name: old -> new`."""
    end: SessionEnd | None
    """None while it runs, or if the process was killed."""
    failure: str
    """The exception that ended it; empty if none did."""
    task_file: str = ""
    """SHA-256 of the task file; empty for built-in tasks."""
    ended: str = ""
    """UTC; empty while it runs, or if the process was killed."""
    reward_file: str = field(default="", metadata=LATER)
    """SHA-256 of the file of the user's reward; empty without one."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Identity of a run and its sessions; the content of `run.json`."""

    schema: int
    """Schema version of the file this was read from."""
    task: str
    """Task name."""
    name: str
    """Run name."""
    seed: int
    """Seed of all random streams."""
    created: str
    """UTC."""
    sessions: tuple[_Session, ...]
    """Oldest first."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Checkpoint interval and retention; a resumed run reuses them."""

    every: int = 1
    """Rounds between checkpoints."""
    keep: int = KEEP
    """Checkpoints kept besides the best."""
    members: int = KEEP_MEMBERS
    """Members kept."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Session settings that do not affect training; a resumed run reuses them."""

    evaluation_envs: int | None = None
    """Members of the final evaluation; None: as many as in training."""
    data_dir: str | None = None
    """Absolute path of the data sets; None: default lookup."""
    telemetry: LevelName = "normal"
    """Telemetry level."""
    telemetry_dir: str | None = None
    """Absolute path of the events folder; None: the run folder."""
    track: tuple[TrackerName, ...] = ()
    """Trackers."""
    step_events: bool = False
    """Record every step."""
    queue_size: int = QUEUE_SIZE
    """Events that may wait to be written."""

    @property
    def data_place(self) -> Path | None:
        """`data_dir` if it exists on this machine, else None."""
        path = None if self.data_dir is None else Path(self.data_dir)
        return path if path is not None and path.is_dir() else None


class RunFolder:
    """A locked run folder for training; other processes cannot open it until it is closed.

    with RunFolder.create(Path("runs"), "first", config) as folder:
        agent, history = train_ppo_vectorized(config, run_dir=folder)
    """

    def __init__(self, path: Path, info: RunInfo, config: TrainingConfig, lock: FolderLock) -> None:
        """Use `create` or `open`."""
        self.path = path
        self.info = info
        self.config = config
        """Settings of the last session; `begin` updates it."""
        self._lock = lock
        self._in_session = False
        self._unused: tuple[Path, ...] = ()
        """Folders created here, the run's own first, as long as nothing is trained in it."""

    @classmethod
    def create(
        cls,
        root: Path,
        name: str,
        config: TrainingConfig,
        session: SessionSettings | None = None,
        task: str = "",
    ) -> RunFolder:
        """Create a locked folder in `root` and begin the first session.

        `task`: name of the task in the folder name; default: as the settings name it.
        """
        if not _NAME.fullmatch(name):
            raise EsperError(
                f"run name {shown(name)}: use letters, digits, '.', '_' and '-', the first a "
                f"letter or digit"
            )
        if len(name) > MAX_NAME_CHARS:
            raise EsperError(
                f"run name {shown(name)}: {len(name)} characters, use {MAX_NAME_CHARS} or fewer"
            )
        label = task or Path(config.task.name).name
        label = re.sub(r"[^A-Za-z0-9._-]+", "-", label)[:MAX_NAME_CHARS]
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        path = root / f"{label}__{name}__{config.seed}__{stamp}"
        return cls._create(path, name, config, session, _rename_to_free_name)

    @classmethod
    def create_at(cls, path: Path, config: TrainingConfig) -> RunFolder:
        """Create the locked folder `path` and begin the first session."""
        if path.exists():
            raise EsperError(f"{path} exists: resume the run in it, or name another folder")
        return cls._create(path, path.name, config, None, Path.rename)

    @classmethod
    def _create(
        cls,
        path: Path,
        name: str,
        config: TrainingConfig,
        session: SessionSettings | None,
        rename: Callable[[Path, Path], Path],
    ) -> RunFolder:
        """Write the files to a hidden draft beside `path`, then rename it."""
        created = utc_now()
        info = RunInfo(SCHEMA, config.task.name, name, config.seed, created, ())
        draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        created_parents = [parent for parent in path.parents if not parent.exists()]
        try:
            with contextlib.ExitStack() as undo:
                draft.mkdir(parents=True)
                undo.callback(shutil.rmtree, draft, ignore_errors=True)
                lock = FolderLock(draft)
                undo.callback(lock.release)
                folder = cls(draft, info, config, lock)
                folder.save_session_settings(session or SessionSettings())
                folder.begin(config)
                folder.path = rename(draft, path)
                sync_folder(path.parent)
                undo.pop_all()  # complete: keep it
        except (OSError, EsperError) as error:
            cause = error.__cause__ if isinstance(error, EsperError) else error
            if isinstance(cause, OSError):  # name the parent folder, not the hidden draft in it
                raise _unwritable(path.parent, cause) from cause
            raise
        folder._unused = (folder.path, *created_parents)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open and lock an existing run folder; call `begin` to start a session."""
        require_run(path)
        lock = FolderLock(path)
        try:
            return cls(path, read_info(path), read_config(path), lock)
        except BaseException:
            lock.release()
            raise

    # ---- sessions -----------------------------------------------------------------------------

    def begin(
        self, config: TrainingConfig, from_round: int = 0, changed: tuple[str, ...] = ()
    ) -> None:
        """Begin a session of this process with these settings, and record it."""
        session = _Session(
            started=utc_now(),
            host=socket.gethostname(),
            pid=os.getpid(),
            versions=versions(),
            revision=git_revision(),
            from_round=from_round,
            changed=changed,
            end=None,
            failure="",
            task_file=task_file_digest(config.task.name),
            reward_file=task_file_digest(config.reward.own),
        )
        self.config = config
        sessions = (*self.info.sessions, session)
        self.info = replace(self.info, schema=SCHEMA, sessions=sessions)
        self._write(CONFIG, config)
        self._write(RUN, self.info)
        for reference in config.user_files:
            copy_user_file(self.path, reference)
        self._in_session = True

    def end(self, end: SessionEnd, failure: str = "") -> None:
        """Record how the session ended; later calls are no-ops."""
        if not self._in_session:
            return
        self._in_session = False
        *before, last = self.info.sessions
        last = replace(last, end=end, failure=failure, ended=utc_now())
        self.info = replace(self.info, sessions=(*before, last))
        self._write(RUN, self.info)

    def mark_used(self) -> None:
        """Training begins: from now on the folder stays, whatever happens."""
        self._unused = ()

    def _discard_unused(self) -> None:
        """Remove a folder that was created here and in which nothing was trained."""
        for place in self._unused[:1]:
            shutil.rmtree(place, ignore_errors=True)
            self._in_session = False
        with contextlib.suppress(OSError):  # another run may be in there by now
            for parent in self._unused[1:]:
                parent.rmdir()
        self._unused = ()

    def save_retention(self, retention: Retention) -> None:
        """Save the retention settings for later sessions, if they changed."""
        if retention != read_retention(self.path):
            self._write(RETENTION, retention)

    def save_session_settings(self, session: SessionSettings) -> None:
        """Save the session settings for later sessions, if they changed."""
        if session != read_session_settings(self.path):
            self._write(SESSION, session)

    def close(self) -> None:
        """Release the lock; a session still open is recorded as interrupted."""
        try:
            self.end(SessionEnd.INTERRUPTED)
        finally:
            self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        self._discard_unused()
        with contextlib.suppress(EsperError):  # report the first error only
            if isinstance(error, Exception):
                self.end(SessionEnd.FAILED, one_line(error))
            self.close()

    def _write(self, name: str, record: object) -> None:
        try:
            write_atomic(self.path / name, sealed_bytes(record))
        except OSError as error:
            raise _unwritable(self.path, error) from error


# ---- reading without a lock ---------------------------------------------------------------------


def require_run(path: Path) -> None:
    """Raise unless `path` is a run folder."""
    require_folder(path, "give the folder of a run (`esper runs` lists them)")
    if not (path / RUN).is_file():
        raise EsperError(f"{path} has no {RUN}: give the folder of a run (`esper runs` lists them)")


def read_info(path: Path) -> RunInfo:
    """Read `run.json`."""
    return _read_record(RunInfo, path / RUN, "restore it from a copy", SCHEMA)


def read_config(path: Path) -> TrainingConfig:
    """Read the run's last settings; without `config.json`, those of the newest checkpoint."""
    where = path / CONFIG
    if where.exists():
        advice = "delete it to take the settings of the newest checkpoint"
        return _read_record(TrainingConfig, where, advice)
    found = CheckpointStore(checkpoints_dir(path)).newest_valid().path
    if found is None:
        raise EsperError(
            f"{where} is missing, and no valid checkpoint has the settings: start a new run"
        )
    return read_checkpoint_config(found)


def read_checkpoint_config(path: Path) -> TrainingConfig:
    """Read the settings stored in a checkpoint, without importing torch."""
    state = read_document(path / STATE)
    settings = state.get("config") if isinstance(state, dict) else None
    return read_record(TrainingConfig, settings, f"{path / STATE} config")


def read_retention(path: Path) -> Retention:
    """Read the retention settings of the last session."""
    if not (path / RETENTION).exists():
        return Retention()
    return _read_record(
        Retention, path / RETENTION, "delete it to keep checkpoints by the defaults"
    )


def read_session_settings(path: Path) -> SessionSettings:
    """Read the session settings of the last session."""
    if not (path / SESSION).exists():
        return SessionSettings()
    advice = "delete it, and pass flags for what differs from the defaults"
    return _read_record(SessionSettings, path / SESSION, advice)


def _read_record(
    kind: type[_Record],
    path: Path,
    advice: str,
    schema: int | None = None,
) -> _Record:
    """Parse a JSON file of a run folder, if of this schema; `advice` is appended to errors.

    A file without a checksum was edited on purpose; its settings are compared with the checkpoint
    when the run resumes.
    """
    try:
        data = read_document(path)
    except EsperError as error:
        raise EsperError(f"{error}; {advice}") from None
    if schema is not None and isinstance(data, dict):
        require_schema(path, data.get("schema"), schema)
    try:
        return read_record(kind, data, str(path))
    except EsperError as error:
        raise EsperError(f"{error}; {advice}") from None


def checkpoints_dir(path: Path) -> Path:
    """Checkpoint folder of a run."""
    return path / run_files.CHECKPOINTS


def members_dir(path: Path) -> Path:
    """Folder of the kept members of a run."""
    return path / run_files.MEMBERS


def report_dir(path: Path) -> Path:
    """Report folder of a run."""
    return path / run_files.REPORT


def _rename_to_free_name(draft: Path, path: Path) -> Path:
    """Rename to `path`, or to the first free numbered name; returns the new path."""
    number = 1
    while True:
        final = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            if not final.exists():
                draft.rename(final)
                return final
        except OSError:
            if not final.exists():  # otherwise another process took the name: try the next
                raise
        number += 1


def _unwritable(folder: Path, error: OSError) -> EsperError:
    return EsperError(
        f"cannot write to {folder}: {error.strerror or error}; {write_advice(error)} or choose "
        f"another folder (--runs)"
    )
