"""Where does a run of the learner live? One folder, one trainer at a time.

    runs/<task>__<name>__<seed>__<time>/
        run.json        what the run is, and each session that trained it: versions, how it ended
        config.json     everything it is set to
        retention.json  how often checkpoints are written and how many are kept, unless default
        session.json    data folder, what is recorded and where, hosts it is judged on, unless
                        default
        lock            held by the process that trains
        checkpoints/    what it goes on from
        events.jsonl, events/     telemetry, where it is recorded
        report/         tables and pictures

A folder appears whole: it is made under a hidden name and renamed. Its JSON files carry a checksum;
one that does not match is refused, because these files decide how a run resumes. No torch here, so
that runs are listed quickly.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, TypeVar

from esper.leyline.codec import Json, read_record, to_json
from esper.leyline.errors import EsperError, shown
from esper.simic.training.config import TrainingConfig
from esper.simic.training.runs.checkpoint_store import KEEP, STATE, CheckpointStore
from esper.simic.training.runs.provenance import git_revision, versions
from esper.storage.atomic import sync_folder, write_advice, write_atomic
from esper.storage.folder_lock import FolderLock
from esper.storage.sealed_json import read_document, seal
from esper.tasks.task_files import task_file_digest

RUN: Final = "run.json"
CONFIG: Final = "config.json"
RETENTION: Final = "retention.json"
SESSION: Final = "session.json"
_FORMER_NAMES: Final = {RETENTION: "keeping.json", SESSION: "surroundings.json"}
"""Names of these files in older run folders; still read."""
SCHEMA: Final = 2
"""Of `run.json` and the files beside it; grows with every change that old readers would not
understand, and with a new field whose default is not what was done before."""

LevelWord = Literal["off", "minimal", "normal", "debug"]
"""A `TelemetryLevel`, as people write it."""

LONGEST_NAME: Final = 80
"""Characters of a run's name, and of its task's in the name of the folder, which has 255."""

_Record = TypeVar("_Record")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class SessionEnd(Enum):
    """How a process stopped training a run."""

    FINISHED = "finished"
    """All rounds are done."""
    INTERRUPTED = "interrupted"
    """It was asked to stop, and saved."""
    FAILED = "failed"
    """An error ended it."""


@dataclass(frozen=True, slots=True)
class Session:
    """One process that trained, or trains, the run."""

    started: str
    """In UTC."""
    host: str
    """Name of the machine."""
    pid: int
    """Its process."""
    versions: tuple[tuple[str, str], ...]
    """(package, version) of what the numbers depend on."""
    revision: str | None
    """Git commit of Esper's source, `-dirty` where files differ from it; None: no repository."""
    from_round: int
    """Rounds that were done when it began."""
    changed: tuple[str, ...]
    """Settings that were changed for it, as they were and as they are."""
    end: SessionEnd | None
    """None: it still runs, or it was killed."""
    failure: str
    """The error that ended it; empty where none did."""
    task_file: str = ""
    """SHA-256 of the file its task came from; empty where it came from none."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a run is."""

    schema: int
    """Of the file this was read from."""
    task: str
    """What it learns on."""
    name: str
    """What people call it."""
    seed: int
    """Every random draw follows from it."""
    created: str
    """In UTC."""
    sessions: tuple[Session, ...]
    """In the order they came."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How a run's checkpoints are kept; a run that goes on keeps them the same way."""

    every: int = 1
    """Rounds from one to the next."""
    keep: int = KEEP
    """How many stay besides the best."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What is around a run and changes nothing about it; one that goes on has the same."""

    evaluation_envs: int | None = None
    """Fresh members it is judged on at its end; None: as many as it trains on."""
    data_dir: str | None = None
    """Folder of the data sets, from the root on; None: wherever they are found."""
    telemetry: LevelWord = "normal"
    """How much is recorded."""
    telemetry_dir: str | None = None
    """Folder of the events, from the root on; None: the run's own."""

    @property
    def data_place(self) -> Path | None:
        """Where its data lie, if there is such a folder: on another machine they lie elsewhere."""
        told = None if self.data_dir is None else Path(self.data_dir)
        return told if told is not None and told.is_dir() else None


class RunFolder:
    """A run folder this process trains in; others are kept out until it is closed.

    with RunFolder.create(Path("runs"), "first", config) as folder:
        agent, history = train_ppo_vectorized(config, run_dir=folder)
    """

    def __init__(self, path: Path, info: RunInfo, config: TrainingConfig, lock: FolderLock) -> None:
        """Use `create` or `open`."""
        self.path = path
        self.info = info
        self.config = config
        """As last used; `begin` changes it."""
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
    ) -> RunFolder:
        """A new folder for this run in `root`, locked; its first session begins."""
        if not _NAME.fullmatch(name):
            raise EsperError(
                f"run name {shown(name)}: use letters, digits, '.', '_' and '-', the first a "
                f"letter or digit"
            )
        if len(name) > LONGEST_NAME:
            raise EsperError(
                f"run name {shown(name)}: {len(name)} characters, use {LONGEST_NAME} or fewer"
            )
        task = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(config.task.name).name)[:LONGEST_NAME]
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        path = root / f"{task}__{name}__{config.seed}__{stamp}"
        return cls._create(path, name, config, session, _rename_unused)

    @classmethod
    def create_at(
        cls, path: Path, config: TrainingConfig, session: SessionSettings | None = None
    ) -> RunFolder:
        """The new folder `path` for this run, locked; its first session begins."""
        if path.exists():
            raise EsperError(f"{path} exists: resume the run in it, or name another folder")
        return cls._create(path, path.name, config, session, _rename)

    @classmethod
    def _create(
        cls,
        path: Path,
        name: str,
        config: TrainingConfig,
        session: SessionSettings | None,
        rename: Callable[[Path, Path], Path],
    ) -> RunFolder:
        """Fill a hidden draft beside `path`, then rename it."""
        created = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
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
                folder.note_session_settings(session or SessionSettings())
                folder.begin(config)
                folder.path = rename(draft, path)
                sync_folder(path.parent)
                undo.pop_all()  # it is whole: nothing is undone
        except (OSError, EsperError) as error:
            cause = error.__cause__ if isinstance(error, EsperError) else error
            if isinstance(cause, OSError):  # name the place, not the hidden draft in it
                raise _unwritable(path.parent, cause) from cause
            raise
        folder._unused = (folder.path, *created_parents)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of a run, locked, to go on in; a session begins with `begin`."""
        require_run(path)
        lock = FolderLock(path)
        try:
            return cls(path, read_info(path), read_config(path), lock)
        except BaseException:
            lock.release()
            raise

    @property
    def telemetry(self) -> Path:
        """What sinks are given: they put `events.jsonl` and `events/` in it."""
        return self.path

    @property
    def checkpoints(self) -> Path:
        """What the run goes on from."""
        return checkpoints_of(self.path)

    @property
    def report(self) -> Path:
        """Tables and pictures; made when something is put there."""
        return report_of(self.path)

    # ---- sessions -----------------------------------------------------------------------------

    def begin(
        self, config: TrainingConfig, from_round: int = 0, changed: tuple[str, ...] = ()
    ) -> None:
        """This process trains from now on, with these settings."""
        session = Session(
            started=time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
            host=socket.gethostname(),
            pid=os.getpid(),
            versions=versions(),
            revision=git_revision(),
            from_round=from_round,
            changed=changed,
            end=None,
            failure="",
            task_file=task_file_digest(config.task.name),
        )
        self.config = config
        sessions = (*self.info.sessions, session)
        self.info = replace(self.info, schema=SCHEMA, sessions=sessions)
        self._write(CONFIG, to_json(config))
        self._write(RUN, to_json(self.info))
        self._in_session = True

    def end(self, end: SessionEnd, failure: str = "") -> None:
        """Note how the session ended; only the first end counts."""
        if not self._in_session:
            return
        self._in_session = False
        *before, last = self.info.sessions
        self.info = replace(self.info, sessions=(*before, replace(last, end=end, failure=failure)))
        self._write(RUN, to_json(self.info))

    def mark_used(self) -> None:
        """Training begins: from now on the folder stays, whatever happens."""
        self._unused = ()

    def discard_unused(self) -> None:
        """Remove a folder that was created here and in which nothing was trained."""
        for place in self._unused[:1]:
            shutil.rmtree(place, ignore_errors=True)
            self._in_session = False
        with contextlib.suppress(OSError):  # another run may be in there by now
            for parent in self._unused[1:]:
                parent.rmdir()
        self._unused = ()

    def note_retention(self, retention: Retention) -> None:
        """How checkpoints are kept from now on, for sessions to come."""
        if retention != read_retention(self.path):
            self._write(RETENTION, to_json(retention))

    def note_session_settings(self, session: SessionSettings) -> None:
        """What is around the run from now on, for sessions to come."""
        if session != read_session_settings(self.path):
            self._write(SESSION, to_json(session))

    def close(self) -> None:
        """Let others in; a session that was not ended counts as interrupted."""
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
        with contextlib.suppress(EsperError):  # what went wrong first is what counts
            if isinstance(error, Exception):
                self.end(SessionEnd.FAILED, one_line(error))
            self.close()

    def _write(self, name: str, data: Json) -> None:
        assert isinstance(data, dict)  # records are
        try:
            write_atomic(self.path / name, (json.dumps(seal(data), indent=1) + "\n").encode())
        except OSError as error:
            raise _unwritable(self.path, error) from error


# ---- reading without a lock ---------------------------------------------------------------------


def require_run(path: Path) -> None:
    """Refuse what is not the folder of a run."""
    if not path.is_dir():
        found = "is a file" if path.exists() else "does not exist"
        raise EsperError(f"{path} {found}: give the folder of a run (`esper runs` lists them)")
    if not (path / RUN).is_file():
        raise EsperError(f"{path} has no {RUN}: give the folder of a run (`esper runs` lists them)")


def read_info(path: Path) -> RunInfo:
    """What a run is."""
    return _read_record(RunInfo, path / RUN, "restore it from a copy", _require_known_schema)


def read_config(path: Path) -> TrainingConfig:
    """What a run was last set to; without its file, what its newest checkpoint says."""
    where = path / CONFIG
    if where.exists():
        advice = "delete it to take the settings of the newest checkpoint"
        return _read_record(TrainingConfig, where, advice)
    found = CheckpointStore(checkpoints_of(path)).newest_valid().path
    if found is None:
        raise EsperError(
            f"{where} is missing, and no whole checkpoint has the settings: start a new run"
        )
    return read_checkpoint_config(found)


def read_checkpoint_config(path: Path) -> TrainingConfig:
    """What a run was set to when it wrote a checkpoint; torch is not needed to know."""
    state = read_document(path / STATE)
    settings = state.get("config") if isinstance(state, dict) else None
    return read_record(TrainingConfig, settings, f"{path / STATE} config")


def read_retention(path: Path) -> Retention:
    """How the checkpoints of a run were last kept."""
    where = _existing(path, RETENTION)
    advice = "delete it to keep checkpoints as by default"
    return Retention() if where is None else _read_record(Retention, where, advice)


def read_session_settings(path: Path) -> SessionSettings:
    """What the last session of a run had of its own."""
    where = _existing(path, SESSION)
    advice = "delete it, and set with flags what differs from the defaults"
    return SessionSettings() if where is None else _read_record(SessionSettings, where, advice)


def _existing(path: Path, name: str) -> Path | None:
    """That file of a run, under its name or its former one; None: there is none."""
    places = (path / name, path / _FORMER_NAMES[name])
    return next((place for place in places if place.exists()), None)


def _require_known_schema(where: Path, data: Json) -> None:
    schema = data.get("schema") if isinstance(data, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise EsperError(
            f"{where} was written by a newer Esper (schema {shown(schema)}, this one reads up to "
            f"{SCHEMA}): update esper"
        )


def _read_record(
    kind: type[_Record],
    path: Path,
    advice: str,
    check: Callable[[Path, Json], None] | None = None,
) -> _Record:
    """What a JSON file of a run says; `advice`: what to do where it cannot be believed.

    A file without a checksum is of an older Esper, or was edited on purpose: what it says is
    compared with the checkpoint when the run resumes.
    """
    try:
        data = read_document(path)
    except EsperError as error:
        raise EsperError(f"{error}; {advice}") from None
    if check is not None:
        check(path, data)
    try:
        return read_record(kind, data, str(path))
    except EsperError as error:
        raise EsperError(f"{error}; {advice}") from None


def checkpoints_of(path: Path) -> Path:
    """Where the checkpoints of a run lie."""
    return path / "checkpoints"


def report_of(path: Path) -> Path:
    """Where the report of a run lies."""
    return path / "report"


def one_line(error: BaseException) -> str:
    """An error in one line, with its kind unless it is one of ours."""
    text = " ".join(str(error).split())
    return text if isinstance(error, EsperError) else f"{type(error).__name__}: {text}"


def _rename(draft: Path, path: Path) -> Path:
    draft.rename(path)
    return path


def _rename_unused(draft: Path, path: Path) -> Path:
    """Give a draft the name, or the first numbered one that is free; what it is called now."""
    number = 1
    while True:
        final = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            if not final.exists():
                draft.rename(final)
                return final
        except OSError:
            if not final.exists():  # somebody else took it meanwhile otherwise
                raise
        number += 1


def _unwritable(folder: Path, error: OSError) -> EsperError:
    return EsperError(
        f"cannot write to {folder}: {error.strerror or error}; {write_advice(error)} or choose "
        f"another folder (--runs)"
    )
