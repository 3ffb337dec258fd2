"""Independent jobs: every job once, results as of one process, and failures that lose nothing."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esper.jobs.messages import StepDone
from esper.jobs.run import JobSource, run_jobs
from esper.jobs.settings import JobSettings
from esper.jobs.worker import Reporter
from esper.leyline.errors import EsperError, install_hint
from support import refused


class Record:
    """Stands in for the record of a step."""

    class signals:  # noqa: N801
        val_accuracy_E = np.array([0.25, 0.75], dtype=np.float32)

        class slots:  # noqa: N801
            blueprint_ES = np.array([[0, -1], [1, 1]])

    class reward_inputs:  # noqa: N801
        score_E = np.array([0.5, 0.7])


class Squares:
    """A worker; jobs below 0 are what goes wrong."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

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
        if job == 7 and self._folder is not None:
            self._die_once(self._folder / "died")
        if job == 8:
            return reporter.ask("how much?"), os.getpid()
        return job * job, os.getpid()

    def _die_once(self, mark: Path) -> None:
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Jobs(JobSource[int, Any]):
    """Jobs in their order, which may ask."""

    def __init__(self, jobs: list[int], keep: Callable[[Any], None]) -> None:
        self.waiting, self.most, self.pass_on = jobs.copy(), len(jobs), keep

    def next(self) -> int | None:
        return self.waiting.pop(0) if self.waiting else None

    def label(self, job: int) -> str:
        return f"job {job}"

    def keep(self, job: int, result: Any) -> None:
        self.pass_on(result)

    def answer(self, job: int, question: Any) -> Any:
        assert question == "how much?"
        return 10 * job


TWO = JobSettings(processes=2, job_tries=2)


def squares(
    jobs: list[int],
    settings: JobSettings = TWO,
    make: Callable[[], Squares] = Squares,
    keep: Callable[[tuple[int, int]], None] | None = None,
) -> tuple[list[tuple[int, int]], list[StepDone], list[str]]:
    found: list[tuple[int, int]] = []
    steps: list[StepDone] = []
    said: list[str] = []
    run_jobs(make, Jobs(jobs, keep or found.append), settings, steps.append, said.append)
    return found, steps, said


def test_every_job_is_done_once_its_steps_arrive_and_its_questions_are_answered():
    found, steps, said = squares([1, 2, 3, 8, 5])
    assert sorted(value for value, _ in found) == [1, 4, 9, 25, 80]
    assert os.getpid() not in {pid for _, pid in found}
    assert sorted(step.label for step in steps) == ["job 1", "job 2", "job 3", "job 5", "job 8"]
    assert (steps[0].work, steps[0].score, steps[0].seeds) == (2.0, 0.6, 1.5)
    np.testing.assert_array_equal(steps[0].accuracy_E, Record.signals.val_accuracy_E)
    assert not said
    assert not active_children()


def test_one_process_is_this_one():
    found, steps, _ = squares([1, 8], JobSettings())
    assert found == [(1, os.getpid()), (80, os.getpid())]
    assert [step.label for step in steps] == ["job 1", "job 8"]


def test_what_a_process_refuses_is_the_same_one_line():
    assert refused(lambda: squares([-1, 1])) == "no square of -1"


def test_a_defect_arrives_with_its_traceback():
    with pytest.raises(RuntimeError, match="ZeroDivisionError: a defect"):
        squares([-2, 1])


def test_a_killed_process_loses_nothing_and_its_job_runs_again(tmp_path):
    found, _, said = squares([1, 7, 2], make=partial(Squares, tmp_path))
    assert sorted(value for value, _ in found) == [1, 4, 49]
    (line,) = said
    assert line.startswith("job 7: its process ended with status -9")
    assert line.endswith("try 2 of 2")
    assert not active_children()


def test_a_job_that_dies_at_every_try_is_one_line_and_ends_the_others():
    text = refused(lambda: squares([-9, -60]))
    assert text.startswith("job -9: its process ended with status -9")
    assert "at 2 of 2 tries" in text
    assert not active_children()


def test_an_interrupt_ends_all_processes():
    def stop(result: tuple[int, int]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        squares([2, -60], keep=stop)
    assert not active_children()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"processes": 0}, "--processes 0: must be 1 or more"),
        ({"job_tries": 0}, "--job-tries 0: must be 1 or more"),
        ({"on": "cluster"}, "--on 'cluster': use local, ray, or ray://HOST:PORT"),
        ({"on": "ray://host"}, "--on 'ray://host': use local, ray, or ray://HOST:PORT"),
        ({"job_gpus": 1.0}, "--job-gpus 1: only Ray assigns these, add --on ray"),
        ({"on": "ray", "job_cpus": -1.0}, "--job-cpus -1: must be 0 to 256"),
        ({"ray_timeout": 0.0}, "--ray-timeout 0: must be above 0"),
    ],
)
def test_wrong_settings_are_one_line(settings, words):
    assert refused(JobSettings(**settings).check).startswith(words)


def test_without_ray_the_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("esper.jobs.settings.find_spec", lambda name: None)
    text = refused(JobSettings(on="ray").check)
    assert text == f"--on ray: Ray is not installed; {install_hint('ray')}"


ORPHAN = """
from esper.jobs.run import run_jobs
from esper.jobs.settings import JobSettings
from test_run import Endless, Jobs

if __name__ == "__main__":
    run_jobs(Endless, Jobs([1, 2], print), JobSettings(processes=2))
"""


class Endless:
    """A worker that reports nothing, so no broken pipe tells it that its parent has gone."""

    def do(self, job: int, reporter: Reporter) -> int:
        Path(f"pid{job}").write_text(str(os.getpid()))
        while True:
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
    wait_for((tmp_path / "pid1").exists)
    time.sleep(0.2)  # until it is written
    child = int((tmp_path / "pid1").read_text())
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
