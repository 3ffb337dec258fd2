"""A long run is judged on the way by the average of its weights; its end stays the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from captured_support import FakeMachine, digest, make_job, make_task, never, table_data, train_all
from esper.growing.trainers import captured, eager, lanes, program
from esper.growing.trainers.average import SETTLED, WEIGHT, Average
from esper.growing.trainers.captured import CapturedTrainer
from esper.growing.trainers.eager import EagerTrainer
from esper.growing.trainers.job import Job, Outcome, Trainer
from esper.growing.trainers.program import Program
from esper.growing.trainers.workers import WorkerTrainer

TASK = make_task(table_data())
TRAINERS: dict[str, Callable[[], Trainer]] = {
    "eager": lambda: EagerTrainer(TASK),
    "workers": lambda: WorkerTrainer(TASK),
    "captured": lambda: CapturedTrainer(TASK, machine=FakeMachine()),
}


class Counting(nn.Module):
    """Counts its batches, and replaces a buffer in each."""

    count: Tensor
    newest: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 3)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("newest", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.count += 1
            self.newest = self.newest + 1.0
        return self.linear(x)


def mlp(width: int = 6) -> nn.Module:
    first = nn.Linear(
        8, width, bias=False
    )  # a bias before BatchNorm would be rounding errors alone
    return nn.Sequential(first, nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Trainers look up after every batch."""
    monkeypatch.setattr(eager, "TICK_SECONDS", -1.0)
    monkeypatch.setattr(captured, "TICK_SECONDS", 0.0)
    monkeypatch.setattr(lanes, "MAX_BURST", 1)
    monkeypatch.setattr("esper.growing.trainers.workers.SLICE_SECONDS", 1e-9)
    monkeypatch.setattr("esper.growing.trainers.workers.TICK_SECONDS", -1.0)


def jobs_in(folder, count: int = 2, every: float = 1e-9, batches: int = 60) -> list[Job]:
    made = [make_job(partial(mlp, 4 + n), n, folder, batches=batches) for n in range(count)]
    return [replace(job, every=every) for job in made]


def averaged_by_hand(job: Job, trained: int) -> dict[str, Tensor]:
    """What the average of a run is after some batches."""
    plain = Program(replace(job, every=0.0, checkpoint=None), TASK)
    held = {name: value.clone() for name, value in plain.network.state_dict().items()}
    every = max(1, job.recipe.batches // 125)
    for _ in range(trained):
        plain.run_eager()
        if plain.trained % every == 0:
            for name, value in plain.network.state_dict().items():
                share = WEIGHT if value.is_floating_point() else 1
                held[name] = held[name] + share * (value - held[name])
    return held


@pytest.mark.parametrize("name", TRAINERS)
def test_a_run_judged_on_the_way_ends_as_one_that_is_not(name, tmp_path):
    (tmp_path / "plain").mkdir()
    plain = train_all(TRAINERS[name](), jobs_in(tmp_path / "plain", every=0.0))
    seen: dict[int, list[Outcome]] = {0: [], 1: []}
    for one in TRAINERS[name]().train(iter(jobs_in(tmp_path)), never):
        seen[one.number].append(one)
    for number, (*on_the_way, last) in seen.items():
        assert on_the_way, "it was judged before its end"
        assert all(one.under_way and one.trained < 60 for one in on_the_way)
        assert not last.under_way
        assert digest(last) == digest(plain[number])


@pytest.mark.parametrize("name", TRAINERS)
def test_it_is_judged_by_the_average_of_its_weights(name, tmp_path):
    job = jobs_in(tmp_path, 1)[0]
    found = [one for one in TRAINERS[name]().train(iter([job]), never) if one.under_way]
    assert all(SETTLED <= one.trained <= program.NEARLY * 60 for one in found)
    for one in (found[0], found[-1]):
        expected = averaged_by_hand(job, one.trained)
        for key, value in one.weights.items():
            torch.testing.assert_close(value, expected[key])
        network = mlp(4)
        network.load_state_dict(one.weights)
        score, loss, _ = TASK.judge(network)
        assert (one.score, one.loss) == (score, loss)


@pytest.mark.parametrize("name", TRAINERS)
def test_a_run_that_is_stopped_is_judged_by_its_average_and_resumes_to_the_same_end(name, tmp_path):
    (tmp_path / "plain").mkdir()
    (plain,) = TRAINERS[name]().train(iter(jobs_in(tmp_path / "plain", 1, every=0.0)), never)
    job = jobs_in(tmp_path, 1, every=1e9)[0]
    (cut,) = TRAINERS[name]().train(iter([job]), lambda running: running[0].trained >= 40)
    assert 40 <= cut.trained < 60
    expected = averaged_by_hand(job, cut.trained)
    for key, value in cut.weights.items():
        torch.testing.assert_close(value, expected[key])
    (resumed,) = TRAINERS[name]().train(iter([job]), never)
    assert digest(resumed) == digest(plain)


def test_it_is_not_judged_before_its_time_nor_near_its_end(tmp_path):
    run = Program(jobs_in(tmp_path, 1, every=1e9)[0], TASK)
    assert not run.wants_judging
    run = Program(jobs_in(tmp_path, 1)[0], TASK)
    assert run.wants_judging
    run.trained = 54
    assert not run.wants_judging, "it ends soon"
    assert not Program(jobs_in(tmp_path, 1, every=0.0)[0], TASK).wants_judging


def test_weights_that_are_too_few_for_an_average_are_judged_as_they_are(tmp_path):
    run = Program(jobs_in(tmp_path, 1)[0], TASK)
    for _ in range(SETTLED - 1):
        run.run_eager()
    assert run.judge_on_the_way(run.how("eager")) == []
    early = run.outcome(run.how("eager")).weights
    assert all(torch.equal(early[key], value) for key, value in run.network.state_dict().items())


def test_counters_and_buffers_that_a_network_replaces_are_those_of_now():
    network, copy = Counting(), Counting()
    average = Average(copy, network, 10)
    for _ in range(SETTLED):
        network(torch.zeros(2, 8))
        average.add()
    settled = average.settled()
    assert isinstance(settled, Counting)
    assert (int(settled.count), float(settled.newest)) == (SETTLED, SETTLED)


def test_what_another_process_judges_is_handed_over_on_the_way(tmp_path):
    """A worker does not have a metric of the user's."""
    run = Program(replace(jobs_in(tmp_path, 1)[0], judged=False), TASK)
    for _ in range(20):
        run.run_eager()
    (early,) = run.judge_on_the_way(run.how("eager"))
    assert early.under_way
    assert math.isnan(early.score)


def test_a_score_that_is_not_finite_is_not_shown_on_the_way(tmp_path, monkeypatch):
    run = Program(jobs_in(tmp_path, 1)[0], TASK)
    for _ in range(20):
        run.run_eager()
    assert run.average is not None
    settled = run.average.settled()
    assert settled is not None
    with torch.no_grad():
        next(settled.parameters()).fill_(torch.nan)
    assert run.judge_on_the_way(run.how("eager")) == []
