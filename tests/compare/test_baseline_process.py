"""Baselines that are judged in a second process: the same numbers, and no process left behind."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from multiprocessing import active_children, resource_tracker

import pytest
import torch

from esper.compare import baseline_process
from esper.compare.baseline_process import BaselineProcess
from esper.compare.judging import judge_baselines
from esper.leyline.codec import to_json
from esper.simic.training.config import PopulationConfig, TaskConfig, TrainingConfig
from support import refused

MEMBERS = 2
TRAINING = TrainingConfig(
    task=TaskConfig("synthetic", episode_length=3, batches_per_step=1, batch_size=16),
    population=PopulationConfig(envs=3, device="cpu"),
)


@pytest.fixture(autouse=True)
def enough_cores(monkeypatch):
    monkeypatch.setattr(baseline_process, "cores", lambda: 64)


def start(training: TrainingConfig = TRAINING) -> BaselineProcess:
    """A process that starts at once."""
    process = BaselineProcess(training, MEMBERS, None, after=0.0)
    process.__enter__()
    while process._timer.is_alive():
        time.sleep(0.01)
    return process


def test_runs_of_the_process_are_those_made_here_bit_for_bit():
    spec = TRAINING.task.spec()
    wanted = judge_baselines(TRAINING, spec, spec.load(), MEMBERS)
    process = start()
    found = process.result()
    process.__exit__()
    assert found is not None
    untrained = ["untrained", "untrained, sampled"]
    assert list(found) == list(wanted) == [*untrained, "asha:2", "wait", "random", "heuristic"]
    for name, run in found.items():
        assert to_json(run.result.outcome) == to_json(wanted[name].result.outcome)
        assert run.result.test_E.tolist() == wanted[name].result.test_E.tolist()
        assert run.compute_E.tolist() == wanted[name].compute_E.tolist()
        assert run.blueprints == wanted[name].blueprints
    assert not active_children()


def test_what_the_process_refuses_is_the_same_one_line():
    process = start(replace(TRAINING, task=replace(TRAINING.task, name="nonsense")))
    assert "nonsense" in refused(process.result)
    process.__exit__()
    assert not active_children()


def test_a_killed_process_is_one_line_and_its_work_is_done_here(capfd):
    process = start()
    (child,) = active_children()
    os.kill(child.pid, signal.SIGKILL)
    assert process.result() is None
    said = capfd.readouterr().err
    assert said.startswith("judging the baselines here: its process ended with status -9")
    assert said.count("\n") == 1
    process.__exit__()


def test_a_process_that_cannot_be_started_is_one_line(capfd, monkeypatch):
    def refuse(process):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("multiprocessing.context.SpawnProcess.start", refuse)
    process = start()
    assert process.result() is None
    said = capfd.readouterr().err
    assert said.startswith("judging the baselines here: no process can be started ([Errno 11]")
    assert said.count("\n") == 1
    process.__exit__()


def test_ctrl_c_is_for_the_command_also_while_the_process_starts(capfd):
    resource_tracker._resource_tracker._stop()  # as before the first process of a command
    process = start()
    (child,) = active_children()
    os.kill(child.pid, signal.SIGINT)
    child.join(0.3)
    assert child.is_alive()
    process.__exit__()
    assert not active_children()
    assert capfd.readouterr().err == ""


def test_a_run_that_is_over_before_starts_no_process():
    with BaselineProcess(TRAINING, MEMBERS, None) as process:
        assert process.result() is None
        assert not active_children()


@pytest.mark.parametrize("why", ["cores", "torchrun"])
def test_no_process_without_cores_of_its_own(why, monkeypatch):
    if why == "cores":
        threads = torch.get_num_threads()
        monkeypatch.setattr(baseline_process, "cores", lambda: 2 * threads - 1)
    else:
        monkeypatch.setattr(baseline_process, "world_size", lambda: 2)
    process = BaselineProcess(TRAINING, MEMBERS, None, after=0.0)
    with process:
        time.sleep(0.05)
        assert process.result() is None
        assert not active_children()
