"""A Ray cluster by its address: its token, its GPUs, and the results of one process."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ray_support import COMPARE, compared, finish

pytest.importorskip("ray", reason="needs pip install '.[ray]'")

SOURCE = Path(__file__).parents[2] / "src"
GPUS_LEFT = """
import ray
from esper.jobs.ray_workers import RayWorkers
from esper.jobs.settings import JobSettings

workers = RayWorkers(object, 1, 1, JobSettings(on="{address}", job_gpus=0.5))
workers.start(0)
while not workers.receive():
    pass
print(ray.available_resources()["GPU"])
workers.close()
"""


@dataclass(frozen=True)
class Cluster:
    address: str
    token: Path


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Of a machine without a token of its own."""
    unset = {name: it for name, it in os.environ.items() if not name.startswith("RAY_AUTH")}
    own = {"HOME": str(folder), "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    return unset | own | {"RAY_USAGE_STATS_ENABLED": "0"} | more


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    """A head of this machine that asks for a token; two CPUs and, so it says, one GPU."""
    home, port = tmp_path_factory.mktemp("head"), free_port()
    folder = Path(tempfile.mkdtemp(prefix="esper-ray-", dir="/tmp"))  # sockets need short paths
    (token := home / "token").write_text("3f" * 32)
    ports = ["--port", str(free_port()), "--ray-client-server-port", str(port)]
    size = ["--num-cpus", "2", "--num-gpus", "1", "--include-dashboard", "false"]
    argv = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block"]
    with (home / "log").open("wb") as log:
        head = subprocess.Popen(
            [*argv, *ports, *size, "--temp-dir", str(folder)],
            env=environment(home, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token)),
            stdout=log,
            stderr=log,
        )
    try:
        until = time.monotonic() + 120
        while b"Ray runtime started" not in (home / "log").read_bytes():
            assert head.poll() is None, (home / "log").read_text()
            assert time.monotonic() < until, (home / "log").read_text()
            time.sleep(0.1)
        yield Cluster(f"ray://127.0.0.1:{port}", token)
    finally:
        head.terminate()
        head.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def run(cluster: Cluster, home: Path, *argv: str, **more: str) -> subprocess.Popen[str]:
    command = [sys.executable, *argv]
    pipe = subprocess.PIPE
    env = environment(home, **more)
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env)


def test_a_comparison_on_a_cluster_that_asks_for_a_token_is_that_of_one_process(cluster, tmp_path):
    one, out = tmp_path / "one", tmp_path / "ray"
    finish(run(cluster, tmp_path, "-m", "esper", *COMPARE, "--out", str(one)))
    argv = [*COMPARE, "--on", cluster.address, "--processes", "2", "--out", str(out)]
    path = str(cluster.token)
    finish(run(cluster, tmp_path, "-m", "esper", *argv, RAY_AUTH_TOKEN_PATH=path))
    assert compared(out) == compared(one)


def test_without_the_token_of_the_cluster_one_line_says_what_to_set(cluster, tmp_path):
    argv = [*COMPARE, "--on", cluster.address, "--quiet", "--out", str(tmp_path / "out")]
    command = run(cluster, tmp_path, "-m", "esper", *argv)
    _, errors = command.communicate(timeout=200)
    assert command.returncode == 2
    lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, errors
    assert f"--on {cluster.address}: Ray does not start (" in lines[0]
    assert "set RAY_AUTH_TOKEN_PATH to a file with that of its head" in lines[0]


def test_jobs_take_the_gpus_they_ask_for(cluster, tmp_path):
    script = GPUS_LEFT.format(address=cluster.address)
    path = str(cluster.token)
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": path}
    assert finish(run(cluster, tmp_path, "-c", script, **token)).strip() == "0.5"
