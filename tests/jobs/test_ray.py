"""Ray: the results of one process, whatever dies on the way; wrong addresses are one line."""

from __future__ import annotations

import pytest

from esper.jobs.settings import JobSettings
from ray_support import COMPARE, ON_RAY, compared, finish, kill_a_worker, start, wait_for
from support import refused

pytest.importorskip("ray", reason="needs pip install '.[ray]'")


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


@pytest.mark.parametrize("address", ["ray://127.0.0.1:1", "ray://nowhere.invalid:10001"])
def test_a_cluster_that_does_not_answer_is_one_line(address):
    from esper.jobs.ray_workers import connect

    text = refused(lambda: connect(JobSettings(on=address, ray_timeout=0.5)))
    assert text.startswith(f"--on {address}: no Ray cluster there (")
