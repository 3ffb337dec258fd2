"""`RunList`: the list of runs, read anew at most once a second whoever asks, and their settings.

A run that no process writes is read again only when its folder has changed; settings only when
their files have.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from esper.karn.views.documents import FileState, file_state
from esper.karn.views.kinds import find_kind
from esper.karn.views.live import where
from esper.karn.views.plain import to_plain
from esper.karn.views.settings import Setting, read_settings, settings_files
from esper.karn.views.summary import RunState, RunSummary, run_summary
from esper.karn.web.places import RunsFolder, id_of, name_of
from esper.leyline.codec import Json
from esper.storage.folder_lock import is_locked
from esper.storage.run_files import REPORT_PAGE

_FRESH_SECONDS: Final = 1.0
Signature = tuple[tuple[str, int, int], ...]
_Settings = Mapping[str, Setting]


class RunList:
    """The runs of a folder, newest first."""

    def __init__(self, folder: RunsFolder) -> None:
        self._folder = folder
        self._known: dict[str, tuple[Signature, RunSummary]] = {}
        """Ended runs, as they were read, by the name of their folder."""
        self._settings: dict[str, tuple[tuple[FileState, ...], _Settings]] = {}
        self._lock = threading.Lock()
        self._listed: list[dict[str, Json]] = []
        self._read_at = -_FRESH_SECONDS

    def read(self) -> list[dict[str, Json]]:
        """All runs as JSON."""
        with self._lock:  # those who wait get the list that the first one reads
            if time.monotonic() - self._read_at >= _FRESH_SECONDS:
                self._listed = [run_entry(run) for run in self._summaries()]
                self._read_at = time.monotonic()
            return self._listed

    def read_with(self, settings: Collection[str]) -> list[dict[str, Json]]:
        """All runs as JSON, each with those of these settings that it has."""
        runs = self.read()
        if not settings:
            return runs
        found = self._all_settings()
        return [run | {"settings": _chosen(found, run, settings)} for run in runs]

    def setting_names(self) -> list[Json]:
        """Every setting of any run: its name, how many runs have it, how many values they have."""
        values: dict[str, list[Setting]] = defaultdict(list)
        for found in self._all_settings().values():
            for name, value in found.items():
                values[name].append(value)
        return [
            {"name": name, "runs": len(some), "values": len(set(map(repr, some)))}
            for name, some in sorted(values.items())
        ]

    def _all_settings(self) -> dict[str, _Settings]:
        """Settings of every run, by the name of its folder."""
        with self._lock:
            names = self._folder.names()
            self._settings = {name: self._settings_of(name) for name in names}
            return {name: values for name, (_, values) in self._settings.items()}

    def _settings_of(self, name: str) -> tuple[tuple[FileState, ...], _Settings]:
        path, known = self._folder.root / name, self._settings.get(name)
        if find_kind(path) is None:
            return (), {}
        states = tuple(map(file_state, settings_files(path)))
        if known is not None and known[0] == states:
            return known
        return states, read_settings(path).values

    def _summaries(self) -> list[RunSummary]:
        names = self._folder.names()
        self._known = {name: self._known[name] for name in names if name in self._known}
        found = [run for name in names if (run := self._summary(name)) is not None]
        return sorted(found, key=lambda run: (run.created, run.name), reverse=True)

    def _summary(self, name: str) -> RunSummary | None:
        path = self._folder.root / name
        signature = _signature(path)
        known = self._known.get(name)
        if known is not None and known[0] == signature and not is_locked(path):
            return known[1]
        if find_kind(path) is None:
            return None
        summary = run_summary(path)
        if summary.state is RunState.RUNNING:
            self._known.pop(name, None)
        else:
            self._known[name] = signature, summary
        return summary


def run_entry(run: RunSummary) -> dict[str, Json]:
    """A run as JSON: its summary, id, progress, and whether it has a report page."""
    plain = to_plain(run)
    assert isinstance(plain, dict)
    return {
        **plain,
        "path": str(run.path),
        "id": id_of(run.path.name),
        "progress": run.progress,
        "seconds_left": run.seconds_left,
        "amount": run.amount,
        "under_way": run.under_way,
        "where": "" if run.live is None else where(run.live),
        "headline": run.headline,
        "judged": run.result.is_judged,
        "report": (run.path / REPORT_PAGE).is_file(),
    }


def _chosen(
    found: Mapping[str, _Settings], run: dict[str, Json], settings: Collection[str]
) -> dict[str, Json]:
    values = found.get(name_of(str(run["id"])), {})
    return {name: values[name] for name in settings if name in values}


def _signature(path: Path) -> Signature:
    """Names, times and sizes of what is in a folder; empty if it is gone."""
    try:
        with os.scandir(path) as entries:
            found = [(one.name, one.stat(follow_symlinks=False)) for one in entries]
    except OSError:
        return ()
    return tuple(sorted((name, at.st_mtime_ns, at.st_size) for name, at in found))
