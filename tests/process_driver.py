"""Runs the `esper` command in processes forked from one that has already imported torch.

    python process_driver.py

For each line {"argv", "cwd", "descriptors"} a process is forked, in a session of its own, and for
{"wait"} it is told how that ended (`run_server.py`). `descriptors` are stdin, stdout and stderr: a
path to open (a terminal becomes the session's) or "broken" (a pipe whose reader has left). The
process ends as Python ends it, streams flushed.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from typing import NoReturn

from esper.scripts.main import main

HEAVY = (
    "torch._dynamo",
    "scipy.stats",
    "esper.scripts.train.learner_report",
    "esper.compare.report",
)
"""What commands import, which would take seconds in every process anew."""


def become(argv: list[str], cwd: str, descriptors: list[str]) -> int:
    """What the forked process does."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    os.chdir(cwd)
    for number, target in enumerate(descriptors):
        connect(number, target)
    sys.argv = ["esper", *argv]
    return main()


def connect(number: int, target: str) -> None:
    """Make a standard stream as Python finds it when it starts."""
    if target == "broken":
        reader, source = os.pipe()
        os.close(reader)
    else:
        # A terminal becomes the session's only where it is opened for reading, too.
        source = os.open(target, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(source, number)
    os.close(source)
    if number == 1:
        sys.stdout.reconfigure(line_buffering=os.isatty(1))


def end_as_python_does(status: int) -> NoReturn:
    """Flush; what cannot be flushed makes the status 120. Tearing torch down takes seconds."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            status = 120
    os._exit(status)


def serve() -> NoReturn:
    for module in HEAVY:
        importlib.import_module(module)
    while line := sys.stdin.readline():
        asked = json.loads(line)
        if "wait" in asked:
            _, status = os.waitpid(asked["wait"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if not answer:
                end_as_python_does(become(**asked))
        print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    serve()
