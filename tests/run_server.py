"""Starts training processes forked from one that has already imported torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DRIVER = Path(__file__).parent / "run_driver.py"
PATIENCE = 120.0


class RunServer:
    """Starts jobs of `run_driver.py`."""

    def __init__(self, home: Path, driver: Path = DRIVER) -> None:
        """`home`: where what they print is kept; `driver`: the script that forks them."""
        self.home = home
        path = os.pathsep.join([str(driver.parent), *sys.path])
        self.process = subprocess.Popen(
            [sys.executable, str(driver), "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        self.started = 0

    def ask(self, **question: object) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return int(json.loads(self.process.stdout.readline()))

    def place(self) -> tuple[Path, Path]:
        """Empty files for what the next process prints."""
        self.started += 1
        output, errors = (self.home / f"{self.started}.{name}" for name in ("out", "err"))
        output.touch()
        errors.touch()
        return output, errors

    def start(self, *argv: object) -> Job:
        """A process of its own, which runs on beside the test."""
        output, errors = self.place()
        pid = self.ask(argv=[str(word) for word in argv], output=str(output), errors=str(errors))
        return Job(self, pid, output, errors)

    def done(self, *argv: object) -> Job:
        """A process that has come to its end, with status 0."""
        job = self.start(*argv)
        assert job.wait() == 0, job.errors.read_text()
        return job

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=PATIENCE)


@dataclass(frozen=True)
class Job:
    """One process."""

    server: RunServer
    pid: int
    output: Path
    errors: Path

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit status; minus the signal where one killed it."""
        return self.server.ask(wait=self.pid)

    def lines(self, word: str) -> list[str]:
        """What it printed behind that word, whole lines alone."""
        lines = self.output.read_text().splitlines(keepends=True)
        return [line[len(word) + 1 : -1] for line in lines if line.startswith(f"{word} ")
                and line.endswith("\n")]  # fmt: skip

    @property
    def folder(self) -> Path:
        return Path(self.until("folder"))

    def until(self, word: str, count: int = 1) -> str:
        """The `count`th thing it prints behind that word, waited for."""
        return self._wait_for(lambda: self.lines(word)[count - 1 : count])

    def until_error(self, text: str) -> str:
        """What it wrote to stderr once `text` is in it."""
        return self._wait_for(lambda: [t for t in [self.errors.read_text()] if text in t])

    def _wait_for(self, look) -> str:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if found := look():
                return found[0]
            time.sleep(0.005)
        raise AssertionError(f"{self.output.read_text()!r} {self.errors.read_text()!r}")


@contextmanager
def run_server(home: Path) -> Iterator[RunServer]:
    server = RunServer(home)
    try:
        yield server
    finally:
        server.close()
