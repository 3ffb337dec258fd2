"""Runs many `esper` commands: one process imports everything and forks one per command.

    python command_driver.py serve

Each line on stdin is {"argv", "output", "errors", "folder", "seconds", "memory"};
`run_server.py` writes them. The child changes to the folder, may take so many bytes more than
there are now, and is ended by SIGALRM after so many seconds.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from run_driver import serve

READY = (
    "torch._dynamo", "pyarrow.parquet", "sklearn.datasets", "tyro",
    "esper.compare.run", "esper.compare.report",
    *(f"esper.scripts.{name}" for name in (
        "main", "train.config", "train.learner", "train.learner_config", "train.learner_report",
        "train.report", "train.run", "train.plan", "evaluate", "compare",
        "runs", "tasks", "doctor",
    )),
)  # fmt: skip
"""What commands import, in every process anew otherwise."""


def command(asked: dict[str, Any]) -> int:
    """The exit status, as if Python had been started for it."""
    os.chdir(asked["folder"])
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + asked["memory"], resource.RLIM_INFINITY))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.alarm(asked["seconds"])
    sys.argv = ["esper", *asked["argv"]]
    try:
        status = importlib.import_module("esper.scripts.main").main()
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return status


def main() -> None:
    for name in READY:
        importlib.import_module(name)
    importlib.import_module("esper.tasks.registry").task_names()
    serve(command)


if __name__ == "__main__":
    main()
