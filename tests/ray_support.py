"""Helpers for tests on Ray: commands, their workers that are killed, and a comparison."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

COMPARE = (
    "compare", "wait", "random", "static-final:random", "--task", "synthetic", "--seeds", "4",
    "--envs", "2", "--episode-length", "12", "--batches-per-step", "1", "--batch-size", "8",
    "--device", "cpu",
)  # fmt: skip
ON_RAY = ("--on", "ray", "--processes", "2")


def finish(process: subprocess.Popen[str]) -> str:
    said, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return said


def compared(folder: Path) -> object:
    """The report without times."""
    found = json.loads((folder / "compare.json").read_text())
    for policy in found["policies"]:
        del policy["result"]["seconds_G"]
    return found


def start(*argv: str, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "esper", *argv, "--out", str(out)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def wait_for(folder: Path, files: str) -> None:
    end = time.monotonic() + 300
    while not list(folder.glob(files)):
        assert time.monotonic() < end, f"no {files} in {folder}"
        time.sleep(0.05)


def ray_workers(command: subprocess.Popen[str]) -> list[int]:
    """Processes of Ray that work for this command, found by their parents."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue
        parents[int(stat.parent.name)] = (name.partition("(")[2], int(rest.split()[1]))
    found = []
    for pid, (name, _) in parents.items():
        above = pid
        while above in parents and above != command.pid:
            above = parents[above][1]
        if above == command.pid and name.startswith("ray::RayWorker"):
            found.append(pid)
    return found


def kill_a_worker(command: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not (found := ray_workers(command)):
        assert command.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(found[0], signal.SIGKILL)
