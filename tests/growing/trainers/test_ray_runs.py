"""Runs on a Ray of this machine: results of one process, also if a worker is killed or stopped."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import pytest
import torch

from esper.growing.ranks import Ranks
from esper.growing.trainers.choose import trainer_for
from esper.growing.trainers.eager import EagerTrainer
from esper.growing.trainers.job import Job
from esper.growing.trainers.workers import WorkerTrainer
from esper.jobs.settings import JobSettings
from esper.leyline.errors import EsperError
from run_support import make_job, make_task, mlp, same, trained

ray = pytest.importorskip("ray", reason="needs pip install '.[ray]'")
LONG = 1500
MODEL = partial(mlp, 4, 0)


@pytest.fixture(scope="module")
def trainer() -> Iterator[WorkerTrainer]:
    made = trainer_for(make_task(), 60.0, Ranks(), MODEL, JobSettings(on="ray", processes=2))
    yield made
    made.close()
    assert not ray.is_initialized()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder, before = tmp_path_factory.mktemp("alone"), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return trained(EagerTrainer(make_task()), jobs_in(folder))
    finally:
        torch.set_num_threads(before)


def jobs_in(folder) -> list[Job]:
    return [make_job(number, folder, LONG) for number in range(4)]


def both_train(running) -> bool:
    return len(running) == 2 and all(one.trained > 0 for one in running)


def test_a_killed_worker_is_replaced_and_its_run_starts_again(trainer, tmp_path, expected):
    killed, ticks = [], []

    def tick(running) -> bool:
        ticks.append(time.monotonic())
        if not killed and both_train(running):
            actor = trainer._transport._actors[0]
            killed.append(ray.get(actor.__ray_call__.remote(lambda self: os.getpid())))
            os.kill(killed[0], signal.SIGKILL)
        return False

    found = trained(trainer, jobs_in(tmp_path), tick)
    assert killed
    assert found.keys() == expected.keys()
    assert all(same(found[number], expected[number]) for number in expected)
    assert max(b - a for a, b in pairwise(ticks)) < 2.0


def test_stopped_runs_come_back_with_their_state_and_are_continued(trainer, tmp_path, expected):
    cut = trained(trainer, jobs_in(tmp_path), both_train)
    assert len(cut) == 2
    assert all(0 < outcome.trained < LONG for outcome in cut.values())
    assert all(job.checkpoint.exists() == (job.number in cut) for job in jobs_in(tmp_path))
    found = trained(trainer, jobs_in(tmp_path))
    assert all(same(found[number], expected[number]) for number in expected)


def test_a_loss_of_the_users_is_refused_in_one_line():
    task = make_task(loss=lambda outputs, targets: outputs.square().mean())
    with pytest.raises(EsperError, match="on='ray': a loss of your own is computed in one process"):
        trainer_for(task, 60.0, Ranks(), MODEL, JobSettings(on="ray"))
