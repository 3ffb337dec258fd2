"""Ray: the results of one process, whatever dies on the way; wrong addresses are one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from esper.jobs.settings import JobSettings
from ray_support import COMPARE, compared, finish
from support import refused

pytest.importorskip("ray", reason="needs pip install '.[ray]'")

AUDIT = (
    "audit", "synthetic", "--contexts", "3", "--topologies", "3", "--hosts", "2", "--envs", "4",
    "--episode-length", "12", "--batches-per-step", "1", "--batch-size", "8", "--device", "cpu",
    "--live", "bare", "--live-draws", "2",
)  # fmt: skip
ON_RAY = ("--on", "ray", "--processes", "2")


def start(*words: str, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "esper", *words, "--out", str(out)]
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


def recorded(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.parquet")}


def kill_a_worker(command: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not (found := ray_workers(command)):
        assert command.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(found[0], signal.SIGKILL)


def test_a_comparison_on_ray_is_that_of_one_process_also_if_a_worker_or_the_command_is_killed(
    tmp_path,
):
    finish(start(*COMPARE, out=tmp_path / "one"))
    one = compared(tmp_path / "one")
    killed = start(*COMPARE, *ON_RAY, out=tmp_path / "worker")
    wait_for(tmp_path / "worker", "policies/*.json")
    kill_a_worker(killed)
    said = finish(killed)
    assert "try 2 of 3" in said
    assert compared(tmp_path / "worker") == one
    command = start(*COMPARE, *ON_RAY, out=tmp_path / "command")
    wait_for(tmp_path / "command", "policies/*.json")
    command.kill()
    command.wait()
    assert not (tmp_path / "command" / "compare.json").exists()
    finish(start(*COMPARE, *ON_RAY, out=tmp_path / "command"))
    assert compared(tmp_path / "command") == one


def test_an_audit_on_ray_is_that_of_one_process_also_if_a_worker_or_the_command_is_killed(tmp_path):
    finish(start(*AUDIT, out=tmp_path / "one"))
    one = recorded(tmp_path / "one")
    assert len(one) == 3 + 2, "contexts, and two files of the live policy"
    killed = start(*AUDIT, *ON_RAY, out=tmp_path / "worker")
    wait_for(tmp_path / "worker", "records/*.parquet")
    kill_a_worker(killed)
    finish(killed)
    assert recorded(tmp_path / "worker") == one
    command = start(*AUDIT, *ON_RAY, out=tmp_path / "command")
    wait_for(tmp_path / "command", "records/*.parquet")
    command.kill()
    command.wait()
    finish(start(*AUDIT, *ON_RAY, out=tmp_path / "command"))
    assert recorded(tmp_path / "command") == one


@pytest.mark.parametrize("address", ["ray://127.0.0.1:1", "ray://nowhere.invalid:10001"])
def test_a_cluster_that_does_not_answer_is_one_line(address):
    from esper.jobs.ray_workers import connect

    text = refused(lambda: connect(JobSettings(on=address, ray_timeout=0.5)))
    assert text.startswith(f"--on {address}: no Ray cluster there (")
