"""`RunsFolder`: which folder a run in an address means. Nothing outside the runs folder is read.

A run is named in addresses by its id: its folder's name if that is plain, else `~` and the name's
bytes in base64, so that no name needs quoting and none can spell a path.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from pathlib import Path
from typing import Final

from esper.karn.views.kinds import find_kind
from esper.karn.views.network_files import network_file
from esper.karn.views.tables import events_folder
from esper.leyline.errors import EsperError, shown
from esper.storage.atomic import require_folder
from esper.storage.run_files import REPORT_PAGE

_PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=-]{0,200}")
_DEEPEST: Final = 3
"""Folders below a run that records are in (events/TYPE/part)."""


class NotServedError(EsperError):
    """No such run, or one that leads out of the runs folder."""


def id_of(name: str) -> str:
    """Id of the run in a folder of that name.

    >>> id_of("digits__ppo__0"), id_of("../up")
    ('digits__ppo__0', '~Li4vdXA')
    """
    if _PLAIN.fullmatch(name):
        return name
    return "~" + base64.urlsafe_b64encode(os.fsencode(name)).decode().rstrip("=")


def name_of(run_id: str) -> str:
    """The folder's name behind an id; raises if it is not the id of a name.

    >>> name_of("~Li4vdXA")
    '../up'
    """
    if _PLAIN.fullmatch(run_id):
        return run_id
    try:
        raw = run_id.encode("ascii")
        if raw[:1] != b"~":
            raise ValueError
        name = os.fsdecode(base64.b64decode(raw[1:] + b"=" * (-len(raw[1:]) % 4), b"-_", True))
    except (ValueError, binascii.Error):
        raise NotServedError(f"no run {shown(run_id)}") from None
    if id_of(name) != run_id:
        raise NotServedError(f"no run {shown(run_id)}")
    return name


class RunsFolder:
    """The one folder whose runs are served."""

    def __init__(self, root: Path) -> None:
        """Raises if there is no such folder, or if it is a run itself."""
        require_folder(root, "give the folder that runs are in")
        if find_kind(root) is not None:
            raise EsperError(f"{root} is a run: give the folder that it is in, {root.parent}")
        self.root = root
        self._real = Path(os.path.realpath(root))

    def names(self) -> list[str]:
        """Names of the folders in it; hidden ones and links that lead out are left out."""
        with os.scandir(self.root) as entries:
            return sorted(
                one.name
                for one in entries
                if one.name[0] != "." and one.is_dir() and self._inside(self.root / one.name)
            )

    def has(self, run_id: str) -> bool:
        """Whether there is a folder of that id, which may hold a run."""
        return name_of(run_id) in self.names()

    def path_of(self, run_id: str) -> Path:
        """Folder of a run; raises if there is none, or anything in it leads out."""
        name = name_of(run_id)
        if not name or name[0] == "." or "/" in name or "\0" in name:
            raise NotServedError(f"no run {shown(name)}")
        path = self.root / name
        if not path.is_dir() or not self._inside(path) or find_kind(path) is None:
            raise NotServedError(f"no run {shown(name)}")
        self._require_contained(path)
        return path

    def report_of(self, run_id: str) -> Path:
        """Path of the report page of a run; raises if it has none."""
        path = self.path_of(run_id) / REPORT_PAGE
        if not _is_file(path):
            raise NotServedError(f"{path.parent.name} has no report page yet")
        return path

    def network_file(self, run_id: str, name: str) -> Path:
        """Path of a file of a network of a grow run; raises if there is none."""
        path = network_file(self.path_of(run_id), name)
        if path is None or not _is_file(path):
            raise NotServedError(f"no file {shown(name)} of a network")
        return path

    def _inside(self, path: Path) -> bool:
        return Path(os.path.realpath(path)).is_relative_to(self._real)

    def _require_contained(self, run: Path) -> None:
        """Raise if a link in the run, or its folder of events, leads out of the runs folder."""
        for folder, folders, files in os.walk(run):
            for name in (*folders, *files):
                path = Path(folder) / name
                if path.is_symlink() and not self._inside(path):
                    inside = path.relative_to(run)
                    raise NotServedError(
                        f"{run.name} is not shown: its {inside} is a link out of the runs folder"
                    )
            if len(Path(folder).relative_to(run).parts) >= _DEEPEST:
                folders.clear()
        events = events_folder(run)
        if not self._inside(events):
            raise NotServedError(
                f"{run.name} is not shown: its events are in {events}, outside the runs folder"
            )


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
