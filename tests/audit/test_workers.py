"""Several processes: every job once, results as of one process, and failures that lose nothing."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest

from esper.audit.workers import Reporter, StepDone, run_in_processes
from esper.leyline.errors import EsperError
from esper.scripts.audit import main
from support import refused


class Record:
    """Stands in for the record of a step."""

    class signals:  # noqa: N801
        val_accuracy_E = np.array([0.25, 0.75], dtype=np.float32)


class Squares:
    """A worker; jobs below 0 are what goes wrong."""

    def do(self, job: int, reporter: Reporter) -> tuple[int, int]:
        reporter.begin(f"job {job}", 2.0)
        reporter.on_step(Record)
        if job == -1:
            raise EsperError("no square of -1")
        if job == -2:
            raise ZeroDivisionError("a defect")
        if job == -9:
            os.kill(os.getpid(), signal.SIGKILL)
        if job == -60:
            time.sleep(60)
        return job * job, os.getpid()


def squares(jobs: list[int], processes: int = 2) -> tuple[list[tuple[int, int]], list[StepDone]]:
    found: list[tuple[int, int]] = []
    steps: list[StepDone] = []
    run_in_processes(Squares, jobs, processes, found.append, steps.append)
    return found, steps


def test_every_job_is_done_once_and_its_steps_arrive():
    found, steps = squares([1, 2, 3, 4, 5])
    assert sorted(value for value, _ in found) == [1, 4, 9, 16, 25]
    assert os.getpid() not in {pid for _, pid in found}
    assert sorted(step.label for step in steps) == [f"job {n}" for n in range(1, 6)]
    assert steps[0].work == 2.0
    np.testing.assert_array_equal(steps[0].accuracy_E, Record.signals.val_accuracy_E)
    assert not active_children()


def test_what_a_process_refuses_is_the_same_one_line():
    kept: list[tuple[int, int]] = []
    text = refused(lambda: run_in_processes(Squares, [3, -1], 1, kept.append))
    assert text == "no square of -1"
    assert [value for value, _ in kept] == [9], "what was finished before is kept"


def test_a_defect_arrives_with_its_traceback():
    with pytest.raises(RuntimeError, match="ZeroDivisionError: a defect"):
        squares([-2])


def test_a_killed_process_is_one_line_and_ends_the_others():
    text = refused(lambda: squares([-9, -60]))
    assert "ended with status -9" in text
    assert "fewer --processes" in text
    assert not active_children()


def test_an_interrupt_ends_all_processes():
    def stop(result: tuple[int, int]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_processes(Squares, [2, -60], 2, stop)
    assert not active_children()


ORPHAN = """
from esper.audit.workers import run_in_processes
from test_workers import Endless

if __name__ == "__main__":
    run_in_processes(Endless, [1], 1, print)
"""


class Endless:
    """A worker that goes on until its parent has gone."""

    def do(self, job: int, reporter: Reporter) -> int:
        Path("pid").write_text(str(os.getpid()))
        while True:
            reporter.on_step(Record)
            time.sleep(0.05)


@pytest.mark.slow
def test_processes_end_with_a_parent_that_was_killed(tmp_path):
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN)
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    parent = subprocess.Popen(
        [sys.executable, str(script)], cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}
    )
    wait_for((tmp_path / "pid").exists)
    time.sleep(0.2)  # until it is written
    child = int((tmp_path / "pid").read_text())
    parent.kill()
    parent.wait()
    wait_for(functools.partial(has_ended, child))


def wait_for(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.05)


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return "Z" in Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3]


FLAGS = (
    "synthetic", "--contexts", "3", "--topologies", "3", "--hosts", "2", "--envs", "4",
    "--episode-length", "3", "--batches-per-step", "1", "--batch-size", "8", "--device", "cpu",
    "--grown", "1", "--live", "bare", "closed_loop", "--live-draws", "2", "--quiet",
)  # fmt: skip


@pytest.mark.slow
def test_records_and_live_policies_are_those_of_one_process_bit_for_bit(tmp_path):
    for processes in (1, 2):
        out = str(tmp_path / str(processes))
        assert main([*FLAGS, "--processes", str(processes), "--out", out]) == 0
    files = sorted(path.relative_to(tmp_path / "1") for path in tmp_path.glob("1/**/*.parquet"))
    assert len(files) == 3 + 3 + 2 + 2
    for file in files:
        assert (tmp_path / "1" / file).read_bytes() == (tmp_path / "2" / file).read_bytes(), file


def test_no_process_is_one_line(capsys):
    assert main([*FLAGS, "--processes", "0"]) == 2
    assert "--processes 0" in capsys.readouterr().err
