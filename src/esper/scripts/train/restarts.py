"""Which run a restarted `torchrun` job continues.

torchrun starts the same command line again when a worker dies (`--max-restarts`). Rank 0 notes the
run folder of the job in a hidden file of --runs, and a restarted job resumes the run noted there.

A note belongs to one job: to the torchrun processes, one for each machine, that were there when it
was written. They live as long as the job, over all restarts, and no other job has them. The job's
id, address and port may be those of an earlier job.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from esper.storage.atomic import write_atomic

_NOTES: Final = ".torchrun-*.json"
_WORKER: Final = b"TORCHELASTIC_RESTART_COUNT="
"""A variable that torchrun sets for workers."""
_START: Final = 19
"""Field of /proc/PID/stat, counted from the state, with the start of the process."""


class JobNote:
    """The note of this job on its run."""

    def __init__(self, runs: Path, agents: frozenset[str]) -> None:
        """`agents`: what `this_agent` returns on the ranks of the job."""
        self._runs, self._agents = runs, agents

    def run(self) -> Path | None:
        """Folder of the run that an earlier attempt of this job began; None: this is the first."""
        folders = [folder for _, folder, agents in self._notes() if agents & self._agents]
        return next((folder for folder in folders if folder.is_dir()), None)

    def keep(self, folder: Path) -> None:
        """Note the run of this job; notes of jobs that were killed on this machine go."""
        if not self._runs.is_dir():  # --resume names a folder elsewhere, and does so when restarted
            return
        for path, _, agents in self._notes():
            if agents & self._agents or all(map(_is_gone, agents)):
                path.unlink(missing_ok=True)
        name = re.sub(r"[^A-Za-z0-9.-]+", "_", min(self._agents))[:80]
        noted = {"folder": str(folder.absolute()), "agents": sorted(self._agents)}
        write_atomic(self._runs / _NOTES.replace("*", name), json.dumps(noted).encode())

    def forget(self) -> None:
        """The job is done."""
        for path, _, agents in self._notes():
            if agents & self._agents:
                path.unlink(missing_ok=True)

    def _notes(self) -> Iterator[tuple[Path, Path, frozenset[str]]]:
        """File, run folder and agents of each note; a damaged one belongs to nobody."""
        for path in sorted(self._runs.glob(_NOTES)):
            try:
                noted = json.loads(path.read_bytes())
                yield path, Path(noted["folder"]), frozenset(map(str, noted["agents"]))
            except (OSError, ValueError, KeyError, TypeError):
                continue


def this_agent() -> str:
    """Return machine, process id and start of the torchrun process of this rank.

    A script between the two has the environment of the worker; torchrun itself does not.
    """
    pid = os.getppid()
    while pid > 1 and _WORKER in _read(pid, "environ"):
        pid = int(_stat(pid)[1])
    return f"{socket.gethostname()}:{pid}:{_started(pid)}"


def _is_gone(agent: str) -> bool:
    """Whether a process of this machine has ended; False for those of others."""
    host, _, process = agent.rpartition(":")[0].rpartition(":")
    return host == socket.gethostname() and agent != f"{host}:{process}:{_started(process)}"


def _started(pid: int | str) -> str:
    """When a process began, in clock ticks since the machine was booted; empty: there is none."""
    fields = _stat(pid)
    return fields[_START] if len(fields) > _START else ""


def _stat(pid: int | str) -> list[str]:
    """The state of a process, its parent, and so on."""
    return _read(pid, "stat").rpartition(b")")[2].decode().split()


def _read(pid: int | str, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
