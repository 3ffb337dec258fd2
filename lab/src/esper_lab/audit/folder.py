"""The folder of an audit: what it holds, and who may write to it.

OUT/audit.json                      what is run, with a checksum
OUT/records/context-0003.parquet    one file per context, written whole or not at all
OUT/records/grown-0003.parquet      the same topologies grown instead of planted
OUT/sessions.json                   which process worked on it when, and how that ended
OUT/lock                            held by the process that writes
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from esper.leyline.errors import EsperError
from esper.storage.atomic import require_not_folders, require_writable, write_advice
from esper.storage.folder_lock import FolderLock
from esper.storage.sealed_json import differences
from esper.storage.sessions import SessionLog, recorded_session
from esper_lab.audit.records import (
    INFO,
    RECORDS,
    AuditInfo,
    identity_of,
    info_json,
    is_packed,
    read_info,
    row_shape,
    rows_path,
    write_info,
)
from esper_lab.audit.rows import ContextRows, read_rows, write_rows


class AuditFolder:
    """An audit folder that this process writes to; a context manager that holds its lock.

    Inside `with` a session is recorded.
    """

    def __init__(self, path: Path, info: AuditInfo, command: str = "") -> None:
        """Create the folder, or check that it holds this audit; it may grow by contexts.

        `command`: what resumes it in a shell.
        """
        require_not_folders((path / INFO, path / RECORDS / "any"))
        if is_packed(path):
            raise EsperError(
                f"{path} holds packed records, which no audit continues: choose another --out, or "
                f"write them as an audit folder with esper_lab.bench.unpack"
            )
        require_writable(path / INFO, "--out")
        (path / RECORDS).mkdir(exist_ok=True)
        self.path, self.info, self.command = path, info, command
        self._session: SessionLog | None = None
        self._undo = ExitStack()
        self._lock = FolderLock(path)
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise

    def _open(self) -> None:
        for left_over in (self.path / RECORDS).glob(".*.tmp"):  # from a killed process
            left_over.unlink()
        if (self.path / INFO).exists():
            saved = read_info(self.path)
            require_same(self.path, saved, self.info)
            self.info = replace(self.info, device=saved.device)
        elif any((self.path / RECORDS).glob("*.parquet")):
            raise EsperError(f"{self.path} has records without {INFO}: choose another --out")
        self._saving(lambda: write_info(self.path, self.info))
        for context in range(self.info.contexts):  # raise on damage before anything runs
            for grown in (False, True):
                if self.has(context, grown):
                    read_rows(
                        rows_path(self.path, context, grown), row_shape(self.info, context, grown)
                    )

    def __enter__(self) -> Self:
        self._undo.callback(self._lock.release)
        self._session = self._undo.enter_context(recorded_session(self.path, self.command))
        self._session.plan(self.done, self.info.contexts)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._undo.__exit__(kind, error, trace)

    @property
    def done(self) -> int:
        """Contexts whose planted topologies are complete."""
        return sum(map(self.has, range(self.info.contexts)))

    def has(self, context: int, grown: bool = False) -> bool:
        """Whether the file of a context is there."""
        return rows_path(self.path, context, grown).exists()

    def write(self, rows: ContextRows, grown: bool = False) -> None:
        """Write the file of a context."""
        place = rows_path(self.path, rows.drawn.context, grown)
        topologies, audit = self.info.topologies, identity_of(self.info)
        self._saving(lambda: write_rows(place, rows, topologies, audit))
        if self._session is not None:
            self._session.saved(self.done)

    def _saving(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            raise EsperError(
                f"cannot write to {self.path} ({error.strerror or error}): {write_advice(error)}; "
                f"finished contexts are kept, and the same command resumes"
            ) from error


def require_same(path: Path, saved: AuditInfo, wanted: AuditInfo) -> None:
    """Raise with what differs; more contexts, and topologies grown for the first time, may."""
    if wanted.contexts < saved.contexts:
        raise EsperError(
            f"{path} holds an audit of {saved.contexts} contexts, --contexts {wanted.contexts} is "
            f"less: ask for {saved.contexts} or more, or choose another --out"
        )
    known = replace(saved, contexts=wanted.contexts, grown=saved.grown or wanted.grown)
    if device_kind(saved.device) == device_kind(wanted.device):
        known = replace(known, device=wanted.device)
    different = next(differences(info_json(known), info_json(wanted)), None)
    if different is not None:
        raise EsperError(
            f"{path} holds another audit: {different.refusal}; set it back or choose another --out"
        )


def device_kind(device: str) -> str:
    """`cpu` or `cuda` of a device's description.

    >>> device_kind("cuda:0 (NVIDIA H200)")
    'cuda'
    """
    return device.split(" ")[0].partition(":")[0]
