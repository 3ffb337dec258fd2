"""An audit on Ray: the records of one process, whatever dies on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from ray_support import ON_RAY, finish, kill_a_worker, start, wait_for

pytest.importorskip("ray", reason="needs pip install '.[ray]'")

AUDIT = (
    "audit", "synthetic", "--contexts", "3", "--topologies", "3", "--hosts", "2", "--envs", "4",
    "--episode-length", "12", "--batches-per-step", "1", "--batch-size", "8", "--device", "cpu",
    "--live", "bare", "--live-draws", "2",
)  # fmt: skip


def recorded(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.parquet")}


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
