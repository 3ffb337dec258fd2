"""Which run a restarted `torchrun` job continues.

torchrun starts the same command line again when a worker dies (`--max-restarts`). Rank 0 notes the
run folder of the job in a hidden file of --runs, and a restarted job resumes the run noted there.
"""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path
from typing import Final

from esper.simic.distributed.environment import environment_number
from esper.storage.atomic import write_atomic

_NO_ID: Final = ("", "none")
"""What torchrun calls a job without an id of its own."""


def run_of_this_job(runs: Path) -> Path | None:
    """Folder of the run that an earlier attempt of this job began; None: this is the first."""
    try:
        noted = json.loads(_path(runs).read_bytes())
        folder, agent = Path(noted["folder"]), noted["agent"]
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or damaged: begin a run
        return None
    restarted = environment_number("TORCHELASTIC_RESTART_COUNT", 0) > 0
    # A job whose number of nodes changes is restarted, too, without being counted.
    return folder if (restarted or agent == _agent()) and folder.is_dir() else None


def note_run(runs: Path, folder: Path) -> None:
    """Note the run of this job."""
    if not runs.is_dir():  # --resume names a folder elsewhere, and does so when restarted
        return
    noted = {"folder": str(folder.absolute()), "agent": _agent()}
    write_atomic(_path(runs), json.dumps(noted).encode())


def forget_run(runs: Path) -> None:
    """The job is done."""
    _path(runs).unlink(missing_ok=True)


def _agent() -> str:
    """The torchrun process that started this one."""
    return f"{socket.gethostname()}:{os.getppid()}"


def _path(runs: Path) -> Path:
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if name in _NO_ID:  # the address of rank 0: one job at a time has it
        name = f"{os.environ.get('MASTER_ADDR', '')}-{os.environ.get('MASTER_PORT', '')}"
    return runs / f".torchrun-{re.sub(r'[^A-Za-z0-9.-]+', '_', name)[:80]}.json"
