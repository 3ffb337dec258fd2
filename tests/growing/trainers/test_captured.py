"""Runs trained side by side by replays are those that a plain loop trains, in any company.

On a CPU, with a fake GPU; tests/cuda/test_captured_runs.py has the same promises there.
"""

from __future__ import annotations

import contextlib
import math
import random
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn

from captured_support import (
    CPU,
    FakeMachine,
    digest,
    make_job,
    make_task,
    never,
    table_data,
    train_all,
)
from esper.device.rng import forked_rng
from esper.growing.trainers import captured, feeds, lanes
from esper.growing.trainers.captured import CapturedTrainer
from esper.growing.trainers.data import ResidentOrder, Samples, StreamReader
from esper.growing.trainers.draws import KeyedDraws, may_draw_on_host
from esper.growing.trainers.eager import EagerTrainer
from esper.growing.trainers.feeds import HostFeed, ResidentFeed
from esper.growing.trainers.job import Outcome
from esper.growing.trainers.kind import PLAIN, kind_key
from esper.growing.trainers.kinds import Kinds
from esper.growing.trainers.probe import batch_seconds
from esper.growing.trainers.program import Program
from esper.growing.trainers.workers import WorkerTrainer
from esper.kasmina.layers.random_layers import Site
from esper.leyline.errors import EsperError

TASK = make_task(table_data())


def mlp(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))


def with_dropout(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 3))


class Own(nn.Module):
    """A linear network with something in its forward pass that cannot be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.batches, self.seen = nn.Linear(8, 3), 0, []
        self.mean: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def jittered(x: Tensor) -> Tensor:
    return x * random.random()


class Counter(Own):
    def forward(self, x: Tensor) -> Tensor:
        self.batches += 1
        return self.linear(x) * (0.5 if self.batches > 100 else 1.0)


class Cache(Own):
    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        return self.linear(x)


class RunningMean(Own):
    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(0).detach()
        self.mean = mean if self.mean is None else 0.9 * self.mean + 0.1 * mean
        return self.linear(x - self.mean)


class PythonsRandom(Own):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * random.uniform(0.9, 1.1)


class UnknownDraws(Own):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * torch.poisson(torch.full_like(x[:, :1], 5.0))

    @classmethod
    def of(cls, width: int) -> UnknownDraws:
        """Of any width the same."""
        return cls()


def reference(job) -> tuple:
    """The run alone, batch after batch, without replays."""
    kinds = Kinds(TASK, FakeMachine().capture)
    program = kinds.program(job)
    while not program.done:
        program.run_eager()
    return digest(program.outcome(program.how("eager")))


def jobs_of(folder, makes=(mlp,), count=5, batches=20, **recipe):
    recipe["batches"] = batches
    widths = [4, 8, 6, 8, 5, 7, 9]
    jobs = []
    for i in range(count):
        make, width = makes[i % len(makes)], widths[i % 7]
        jobs.append(make_job(partial(make, width), i, folder, **recipe))
    return jobs


@pytest.mark.parametrize("make", [mlp, with_dropout])
def test_replayed_runs_are_the_eager_ones_in_any_company(tmp_path, make):
    jobs = jobs_of(tmp_path, (make,))
    alone = {job.number: reference(job) for job in jobs}
    together = train_all(CapturedTrainer(TASK, machine=FakeMachine()), jobs)
    reverse = train_all(CapturedTrainer(TASK, lanes=2, machine=FakeMachine()), jobs[::-1])
    for number, expected in alone.items():
        assert digest(together[number]) == expected
        assert digest(reverse[number]) == expected
    assert {outcome.how.trainer for outcome in together.values()} == {"captured"}


def test_every_batch_but_the_first_is_replayed_on_the_lane_of_its_run(tmp_path):
    machine = FakeMachine()
    trainer = CapturedTrainer(TASK, lanes=2, machine=machine)
    train_all(trainer, jobs_of(tmp_path, count=3, batches=10))
    runs = [line for line in machine.log if line in ("capture on 0", "capture on 1")]
    assert runs == ["capture on 0", "capture on 1", "capture on 0"]
    trial = 3  # replays of the one trial
    assert machine.log.count("replay") == 3 * 9 + trial


def test_an_urgent_run_has_a_lane_before_the_others_and_trains_to_the_same_bits(tmp_path):
    first, second, third = jobs_of(tmp_path, count=3, batches=10)
    jobs = [first, replace(second, urgent=True), replace(third, urgent=True)]
    machine = FakeMachine()
    ended = train_all(CapturedTrainer(TASK, lanes=3, machine=machine), jobs)
    runs = [line for line in machine.log if line.startswith("capture on") and line[-1].isdigit()]
    assert runs == ["capture on 0", "capture on 3", "capture on 4"]
    assert {n: digest(one) for n, one in ended.items()} == {j.number: reference(j) for j in jobs}


@pytest.mark.parametrize(("samples", "size", "table"), [(10, 4, 16), (96, 16, 64), (7, 16, 100)])
def test_tables_of_sample_numbers_are_the_order_of_the_run(samples, size, table):
    x = torch.arange(samples).float()[:, None]
    held = Samples([x], torch.arange(samples))
    order = ResidentOrder(held, size, seed=3)
    for first in (0, 5):
        feed = ResidentFeed(held, size, 3, 40, channels_last=False, table=table)
        feed.begin(first)
        for number in range(first, 40):
            assert feed.ready(number) > 0
            (values,), targets = feed.batch()
            assert torch.equal(targets, order.index(number))
            assert torch.equal(values[:, 0].long(), targets)
            assert int(feed.number_1) == number
            feed.advance()


def test_a_table_that_is_used_up_within_a_run_is_computed_again(tmp_path, monkeypatch):
    small = partial(ResidentFeed, table=64)  # four batches
    monkeypatch.setattr("esper.growing.trainers.program.ResidentFeed", small)
    (job,) = jobs_of(tmp_path, count=1, batches=200)
    found = train_all(CapturedTrainer(TASK, machine=FakeMachine()), [job])[0]
    assert digest(found) == reference(job)
    assert found.how.trainer == "captured"


def test_tiny_data_compute_many_epochs_at_once(monkeypatch):
    calls = []
    whole = torch.argsort
    monkeypatch.setattr(torch, "argsort", lambda *a, **k: calls.append(1) or whole(*a, **k))
    feed = ResidentFeed(Samples([torch.ones(32, 1)], torch.arange(32)), 16, 0, 5000, False)
    feed.begin(0)
    for number in range(5000):
        feed.ready(number)
        feed.advance()
    assert len(calls) == 1


def test_the_schedule_table_holds_the_rates_of_the_recipe(tmp_path):
    job = make_job(mlp, 0, tmp_path)
    program = Program(job, TASK, replace(PLAIN, captured=True))
    feed = program.make_feed()
    for number in range(job.recipe.batches):
        feed.ready(number)
        program.step_static(feed)
        rate = program.optimizer.lr
        assert float(rate) == float(torch.tensor(job.recipe.rate(number), dtype=torch.float32))


def test_batches_from_the_host_are_copied_to_fixed_addresses():
    samples = TASK.train
    order = ResidentOrder(samples, 16, seed=1)
    feed = HostFeed(order, CPU, channels_last=False)
    feed.begin(0)
    feed.ready(0)
    (values,), targets = feed.batch()
    for number in range(1, 6):
        feed.ready(number)
        (expected,), labels = order.batch(number)
        assert torch.equal(values, expected)
        assert torch.equal(targets, labels)


def test_a_batch_that_is_on_the_device_is_copied_from_there(monkeypatch):
    """A device without an index is the same one as its tensors say with one."""
    monkeypatch.setattr(feeds, "_Slot", None)  # for batches of the host
    order = ResidentOrder(TASK.train, 16, seed=1)
    feed = HostFeed(order, torch.device("cpu", 0), channels_last=False)
    assert feed.ready(0) == 1
    assert torch.equal(feed.batch()[1], order.batch(0)[1])


@pytest.mark.parametrize("way", ["eager", "captured"])
def test_whoever_computes_with_a_stream_waits_for_its_copy_and_holds_its_memory(
    tmp_path, monkeypatch, way
):
    waited, held, reading = [], [], object()
    lane = SimpleNamespace(wait_stream=waited.append)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: lane)
    monkeypatch.setattr(Tensor, "record_stream", lambda part, stream: held.append(stream))
    reader = StreamReader(Endless(), TASK.inputs, 0, CPU)
    monkeypatch.setattr(reader, "_side", reading)
    program = Program(make_job(mlp, 0, tmp_path), replace(TASK, train=reader))
    if way == "eager":
        program.step_eager()
    else:
        program.make_feed().ready(0)
    assert waited == [reading]
    assert held == [lane, lane], "inputs and targets"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Counter, "batches"),
        (Cache, "seen"),
        (RunningMean, "other values"),
        (PythonsRandom, "Python's random"),
        (UnknownDraws, "torch.poisson"),
    ],
)
def test_what_a_replay_would_get_wrong_trains_eagerly_and_says_why(tmp_path, make, reason):
    jobs = [make_job(make, i, tmp_path, batches=8) for i in range(2)]
    machine = FakeMachine()
    found = train_all(CapturedTrainer(TASK, machine=machine), jobs)
    for outcome in found.values():
        assert outcome.how.trainer == "eager"
        assert reason in outcome.how.note
        assert outcome.trained == 8
    alone = train_all(CapturedTrainer(TASK, machine=FakeMachine()), jobs[1:])
    assert digest(alone[1]) == digest(found[1])


def test_a_capture_that_fails_means_eager_and_the_reason(tmp_path):
    machine = FakeMachine()

    def fail(capture):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    machine.fail = fail
    job = make_job(mlp, 0, tmp_path)
    outcome = train_all(CapturedTrainer(TASK, machine=machine), [job])[0]
    assert outcome.how.note == (
        "a capture failed: operation not permitted when stream is capturing"
    )
    assert digest(outcome)[0] == digest(train_all(EagerTrainer(TASK), [job])[0])[0]


class Endless:
    """A stream of random batches that counts how often it is opened."""

    batches_per_epoch = None

    def __init__(self) -> None:
        self.opened = 0

    def epoch(self, epoch: int = 0):
        self.opened += 1
        generator = torch.Generator().manual_seed(epoch)
        while True:
            x = torch.randn(16, 8, generator=generator)
            yield x, x[:, :3].argmax(1)


def train_on_stream(jobs, **settings):
    source = Endless()
    task = replace(TASK, train=StreamReader(source, TASK.inputs, 0, CPU))
    trainer = CapturedTrainer(task, lanes=2, machine=FakeMachine(), **settings)
    return train_all(trainer, jobs), source.opened


def test_runs_read_a_stream_together(tmp_path):
    jobs = jobs_of(tmp_path, (mlp, with_dropout), count=4)
    alone, _ = train_on_stream(jobs[1:2])
    together, opened = train_on_stream(jobs)
    assert {outcome.how.trainer for outcome in together.values()} == {"captured"}
    assert digest(together[1]) == digest(alone[1])
    assert opened <= 3  # for two trials, and for all runs


def test_no_run_reads_on_that_would_leave_others_behind_in_the_stream():
    trainer = CapturedTrainer(TASK, machine=FakeMachine())

    def at(trained: int, done: bool = False):
        return SimpleNamespace(program=SimpleNamespace(trained=trained, done=done))

    burst = captured.STREAM_BURST
    ended, last, near, ahead = at(0, done=True), at(9), at(8 + burst), at(9 + burst)
    trainer._runs = [ended, last, near, ahead]
    assert trainer._hindmost([last, near, ahead]) == [last, near]
    trainer._runs, trainer._shares_stream = [at(9), at(10)], True
    joins = [n for n in range(20) if not trainer._is_apart(at(n))]
    assert joins == list(range(10 - burst, 10)), "not behind what the stream keeps, nor ahead"
    trainer._runs.clear()


def test_a_run_does_not_join_those_that_are_further_in_the_stream(tmp_path):
    jobs = [make_job(mlp, i, tmp_path, batches=n) for i, n in enumerate((20, 60, 20))]
    found, opened = train_on_stream(jobs, most=2)
    assert sorted(found) == [0, 1, 2]
    assert opened <= 4


def test_sgd_is_replayed_as_it_is_eager(tmp_path):
    job = make_job(mlp, 0, tmp_path, optimizer="sgd", batches=20)
    found = train_all(CapturedTrainer(TASK, machine=FakeMachine()), [job])
    assert digest(found[0]) == reference(job)


class DrawsLate(Own):
    """From its fourth batch on, and when it is judged."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        drawn = random.random() + np.random.rand() if self.calls > 3 or not self.training else 1.0
        return self.linear(x) * drawn


def test_a_network_that_draws_on_the_host_later_on_is_seeded_in_every_batch(tmp_path):
    job = make_job(lambda: nn.Sequential(DrawsLate()), 0, tmp_path, batches=12)
    ends = []
    for seed in (0, 1):
        with forked_rng(seed):
            program = Program(job, TASK)
            while not program.done:
                program.run_eager()
                random.seed(seed)  # whatever else the process draws
            ends.append(digest(program.outcome(program.how("eager"))))
    assert ends[0] == ends[1]


def test_a_network_of_known_code_does_not_cost_the_seeding_of_generators_on_the_host():
    class Users(nn.ReLU):
        pass

    known = (mlp(), with_dropout(), fx.symbolic_trace(mlp()), nn.LSTM(2, 2))
    assert not any(may_draw_on_host(network) for network in known)
    hooked = mlp()
    hooked[0].register_forward_hook(lambda *_: None)
    wrapped = fx.symbolic_trace(mlp())
    wrapped.graph.call_function(jittered)
    for network in (Counter(), nn.Sequential(Users()), hooked, wrapped):
        assert may_draw_on_host(network)


class Unrepeatable(Own):
    """Rounds differently each time, as a kernel with atomic additions does."""

    calls: ClassVar[list[int]] = [0]

    def forward(self, x: Tensor) -> Tensor:
        self.calls[0] += 1
        return self.linear(x) * (1.0 + 1e-6 * (self.calls[0] % 7))


def test_kernels_that_round_differently_each_time_are_captured_and_not_called_bitwise(tmp_path):
    found = train_all(
        CapturedTrainer(TASK, machine=FakeMachine()), [make_job(Unrepeatable, 0, tmp_path)]
    )
    assert found[0].how.trainer == "captured"
    assert not found[0].how.bitwise


def test_a_kind_of_network_is_tried_once(tmp_path):
    machine = FakeMachine()
    trainer = CapturedTrainer(TASK, machine=machine)
    train_all(trainer, jobs_of(tmp_path, (mlp, with_dropout), count=6, batches=8))
    train_all(trainer, jobs_of(tmp_path, (mlp, with_dropout), count=2, batches=8))
    assert trainer._kinds.trials == 2
    assert machine.captures == 6 + 2 + 2


def traced(width: int, function=torch.relu) -> nn.Module:
    """Code that holds sizes."""

    class Sized(Own):
        def forward(self, x: Tensor) -> Tensor:
            return function(self.linear(x).view(-1, 3, width)).mean(2)

    network = Sized()
    network.linear = nn.Linear(8, 3 * width)
    return fx.symbolic_trace(network)


def test_a_kind_is_told_by_settings_not_by_sizes():
    assert kind_key(mlp(4)) == kind_key(mlp(5))
    assert kind_key(traced(4)) == kind_key(traced(5))
    assert kind_key(traced(4)) != kind_key(traced(4, torch.tanh))
    other = mlp(4)
    other[1].momentum = None
    assert kind_key(other) != kind_key(mlp(4))
    assert kind_key(nn.Dropout(0.1)) != kind_key(nn.Dropout(0.2))


def test_a_diverging_run_ends_alone(tmp_path):
    jobs = jobs_of(tmp_path, count=3, batches=40)
    nan = replace(jobs[2], build=lambda: Explodes())
    kept = {job.number: reference(job) for job in jobs if job.number != 2}
    found = train_all(CapturedTrainer(TASK, machine=FakeMachine()), [*jobs[:2], nan, *jobs[3:]])
    assert not found[2].finite
    assert found[2].trained == 2  # where the loss is looked at first
    assert all(digest(found[number]) == expected for number, expected in kept.items())
    eager = train_all(EagerTrainer(TASK), [nan])[2]
    assert (eager.trained, eager.finite) == (found[2].trained, False)


def test_a_run_ends_where_its_loss_was_not_finite_whatever_was_queued_since(tmp_path):
    program = Program(make_job(mlp, 0, tmp_path), TASK)
    program.trained = 30
    program.note_loss(10, float("nan"))
    program.note_loss(20, 1.0)
    assert (program.trained, program.finite, len(program.curve)) == (10, False, 1)


def test_dropout_draws_anew_in_every_batch():
    draws = KeyedDraws(3, Site("network"), CPU)

    def mask(number: int | Tensor) -> list[bool]:
        with draws.batch(number):
            return nn.functional.dropout(torch.ones(64), 0.5).bool().tolist()

    assert mask(4) == mask(torch.tensor([4])) != mask(5)


class Explodes(Own):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) / 0.0


# ---- admission, stop, checkpoints -----------------------------------------------------------


class Tight(FakeMachine):
    """Each captured run takes some memory until it is released."""

    def __init__(self, fits: int, monkeypatch) -> None:
        super().__init__(free=fits * 100 + 40)
        self.most = self.now = self.refused = 0
        start, release = captured.CapturedRun.start, captured.CapturedRun.release

        def started(run, alone):
            if self.memory < 100:
                self.refused += 1
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
            start(run, alone)
            self.memory -= 100
            self.now += 1
            self.most = max(self.most, self.now)

        def released(run):
            release(run)
            self.memory += 100
            self.now -= 1

        monkeypatch.setattr(captured.CapturedRun, "start", started)
        monkeypatch.setattr(captured.CapturedRun, "release", released)


def test_as_many_runs_at_a_time_as_memory_allows(tmp_path, monkeypatch):
    machine = Tight(3, monkeypatch)
    found = train_all(CapturedTrainer(TASK, machine=machine), jobs_of(tmp_path, count=7))
    assert sorted(found) == list(range(7))
    assert machine.most == 3


def test_a_run_that_finds_no_memory_waits_for_another_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(captured, "HEADROOM", 0.0)  # admission sees nothing coming
    monkeypatch.setattr(captured, "TICK_SECONDS", 0.0)
    machine = Tight(2, monkeypatch)
    jobs = jobs_of(tmp_path, count=6)
    found = train_all(CapturedTrainer(TASK, machine=machine), jobs)
    assert sorted(found) == list(range(6))
    assert machine.most == 2
    assert machine.refused <= 5  # once for each run that ended
    assert digest(found[5]) == reference(jobs[5])


OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")


class Huge(nn.Module):
    """There is no memory for a batch of it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        raise OUT_OF_MEMORY


TRAINERS = {
    "captured": lambda task: CapturedTrainer(task, machine=FakeMachine()),
    "eager": EagerTrainer,
    "this process": WorkerTrainer,
}


@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize("first", [True, False])
def test_a_run_that_does_not_fit_alone_ends_and_the_others_are_as_ever(tmp_path, name, first):
    jobs = jobs_of(tmp_path, count=5)
    alone = train_all(TRAINERS[name](TASK), jobs_of(tmp_path, count=5))
    taken = list[int]()

    def queue():
        for job in (huge, *jobs) if first else (*jobs, huge):
            taken.append(job.number)
            yield job

    huge = make_job(Huge, 9, tmp_path)
    found = dict[int, Outcome]()
    for one in TRAINERS[name](TASK).train(queue(), never):
        if first and not found:
            assert taken == [9], "who made the jobs may learn from it before the next"
        found[one.number] = one
    lost = found.pop(9)
    assert (lost.failed, lost.how.note, lost.trained, lost.finite) == (
        "out of memory", "out of memory", 0, False,
    )  # fmt: skip
    assert {n: digest(one) for n, one in found.items()} == {n: digest(o) for n, o in alone.items()}
    assert not any(one.failed for one in found.values())


def test_all_room_is_used_again_after_a_run_that_does_not_fit(tmp_path):
    first, *later = jobs_of(tmp_path, count=4)
    trainer = CapturedTrainer(TASK, lanes=3, machine=FakeMachine())
    assert most_at_a_time(trainer, [first, make_job(Huge, 9, tmp_path), *later]) == 3


def test_a_capture_that_fails_for_one_network_means_that_this_one_is_eager(tmp_path):
    machine, jobs = FakeMachine(), jobs_of(tmp_path, count=3)
    expected = {job.number: reference(job) for job in jobs}

    def fail(capture):
        if capture == 3:  # after the trial of their kind, and the first run
            raise RuntimeError("operation not permitted when stream is capturing")

    machine.fail = fail
    found = train_all(CapturedTrainer(TASK, machine=machine), jobs)
    how = {number: (one.how.trainer, one.how.note) for number, one in found.items()}
    note = "a capture failed: operation not permitted when stream is capturing"
    assert how == {0: ("captured", ""), 1: ("eager", note), 2: ("captured", "")}
    assert {number: digest(one) for number, one in found.items()} == expected


@pytest.mark.parametrize("count", [1, 3])
def test_without_memory_for_a_capture_a_run_waits_and_is_eager_if_it_is_alone(tmp_path, count):
    machine, jobs = FakeMachine(), jobs_of(tmp_path, count=count)
    expected = {job.number: reference(job) for job in jobs}

    def fail(capture):
        if capture == count + 1:  # the last one, beside all others
            raise OUT_OF_MEMORY

    machine.fail = fail
    found = train_all(CapturedTrainer(TASK, machine=machine), jobs)
    assert found[count - 1].how.trainer == ("eager" if count == 1 else "captured")
    assert {number: digest(one) for number, one in found.items()} == expected


class Hungry(FakeMachine):
    """Batches of eager runs take some memory, which stays with the run."""

    def __init__(self, fits: int, monkeypatch) -> None:
        super().__init__(free=fits * 100 + 40)
        self.held, self.most, self.refused = set[int](), 0, list[int]()
        step, release = captured.CapturedRun._run_eager, captured.CapturedRun.release

        def stepped(run):
            number = run.program.job.number
            if number not in self.held and self.memory < 100:
                self.refused.append(number)
                raise OUT_OF_MEMORY
            if number not in self.held:
                self.held.add(number)
                self.memory -= 100
                self.most = max(self.most, len(self.held))
            return step(run)

        def released(run):
            release(run)
            if run.program.job.number in self.held:
                self.held.remove(run.program.job.number)
                self.memory += 100

        monkeypatch.setattr(captured.CapturedRun, "_run_eager", stepped)
        monkeypatch.setattr(captured.CapturedRun, "release", released)


def test_as_many_eager_runs_at_a_time_as_memory_allows(tmp_path, monkeypatch):
    jobs = jobs_of(tmp_path, (UnknownDraws.of,), count=6)
    expected = {job.number: reference(job) for job in jobs}
    machine = Hungry(3, monkeypatch)
    found = train_all(CapturedTrainer(TASK, machine=machine), jobs)
    assert {one.how.trainer for one in found.values()} == {"eager"}
    assert machine.most == 3
    assert machine.refused == [], "the first one shows what they take"
    assert {number: digest(one) for number, one in found.items()} == expected


def test_an_eager_run_that_needs_more_later_waits_for_others_or_is_given_up(tmp_path, monkeypatch):
    jobs = jobs_of(tmp_path, (UnknownDraws.of,), count=4)
    expected = {job.number: reference(job) for job in jobs}
    step = captured.CapturedRun._run_eager

    def stepped(run):
        program = run.program
        beside = len(trainer._runs) > 1
        if program.trained == 5 and (program.job.number == 3 or beside):
            raise OUT_OF_MEMORY
        return step(run)

    monkeypatch.setattr(captured.CapturedRun, "_run_eager", stepped)
    trainer = CapturedTrainer(TASK, lanes=2, machine=FakeMachine())
    found = train_all(trainer, jobs)
    assert found.pop(3).failed == "out of memory"
    del expected[3]
    assert {number: digest(one) for number, one in found.items()} == expected


def test_a_run_that_cannot_be_judged_beside_others_is_judged_when_they_ended(tmp_path, monkeypatch):
    jobs = jobs_of(tmp_path, count=3)
    expected = {job.number: reference(job) for job in jobs}
    outcome = Program.outcome

    def judged(program, how):
        if len(trainer._runs) > 1 or program.job.number == 2:
            raise OUT_OF_MEMORY
        return outcome(program, how)

    monkeypatch.setattr(Program, "outcome", judged)
    trainer = CapturedTrainer(TASK, machine=FakeMachine())
    found = train_all(trainer, jobs)
    assert found.pop(2).failed == "out of memory"
    del expected[2]
    assert {number: digest(one) for number, one in found.items()} == expected


def test_a_model_that_does_not_fit_is_one_clear_line_before_the_search(tmp_path):
    trainer = CapturedTrainer(TASK, machine=FakeMachine())
    with pytest.raises(EsperError, match=r"your model cannot be trained with batches of 16: out"):
        batch_seconds(trainer, [make_job(Huge, 0, tmp_path)], needed=True)
    assert math.isnan(batch_seconds(trainer, [make_job(Huge, 0, tmp_path)])[0])


def most_at_a_time(trainer, jobs):
    """Jobs that were taken and had not ended, at most; all end."""
    taken, ended, most = 0, 0, 0

    def counted():
        nonlocal taken
        for job in jobs:
            taken += 1
            yield job

    for _ in trainer.train(counted(), never):
        most = max(most, taken - ended)
        ended += 1
    assert ended == len(jobs)
    return most


def test_a_run_per_lane_so_that_the_first_ones_end_early(tmp_path):
    trainer = CapturedTrainer(TASK, lanes=3, machine=FakeMachine())
    assert most_at_a_time(trainer, jobs_of(tmp_path, count=10, batches=4)) == 3


def test_runs_on_a_stream_share_lanes_so_that_it_is_read_less_often(tmp_path):
    task = replace(TASK, train=StreamReader(Endless(), TASK.inputs, 0, CPU))
    trainer = CapturedTrainer(task, lanes=2, machine=FakeMachine())
    jobs = jobs_of(tmp_path, count=captured.STREAM_RUNS + 2, batches=4)
    assert most_at_a_time(trainer, jobs) == captured.STREAM_RUNS


def test_a_stop_saves_and_judges_what_is_under_way_and_resume_is_bitwise(tmp_path, monkeypatch):
    monkeypatch.setattr(captured, "TICK_SECONDS", 0.0)
    monkeypatch.setattr(lanes, "MAX_BURST", 1)  # stops between points of the curve
    jobs = jobs_of(tmp_path, (mlp, with_dropout), count=3, batches=60)
    expected = {job.number: reference(job) for job in jobs}
    calls = []

    def stop(running):
        calls.append(running)
        return len(calls) == 3

    cut = train_all(CapturedTrainer(TASK, machine=FakeMachine()), jobs, stop)
    assert sorted(cut) == [0, 1, 2]
    assert all(0 < outcome.trained < 60 for outcome in cut.values())
    saved = [Program(job, TASK, replace(PLAIN, captured=True)).trained for job in jobs]
    assert saved == [cut[job.number].trained for job in jobs], "nothing is queued after the stop"
    resumed = train_all(CapturedTrainer(TASK, lanes=3, machine=FakeMachine()), jobs[::-1])
    assert {number: digest(outcome) for number, outcome in resumed.items()} == expected


def test_runs_are_saved_on_the_way(tmp_path, monkeypatch):
    monkeypatch.setattr(captured, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(captured, "STARTING_SECONDS", 0.0)  # else they end before the second starts
    jobs = jobs_of(tmp_path, count=2)
    found = train_all(CapturedTrainer(TASK, machine=FakeMachine()), jobs)
    assert all(job.checkpoint.exists() for job in jobs)
    middle = Program(jobs[0], TASK, replace(PLAIN, captured=True)).trained
    assert 0 < middle < 20
    again = train_all(CapturedTrainer(TASK, machine=FakeMachine()), jobs)
    assert digest(again[0]) == digest(found[0])


def test_the_generators_and_settings_of_the_caller_stay_as_they_are(tmp_path):
    torch.manual_seed(5)
    random.seed(5)
    expected = torch.rand(1), random.random()
    torch.manual_seed(5)
    random.seed(5)
    for _ in CapturedTrainer(TASK, machine=FakeMachine()).train(
        iter(jobs_of(tmp_path, (with_dropout,), count=2)), never
    ):
        pass
    assert (torch.rand(1), random.random()) == expected


def test_unused_parameters_keep_no_gradient(tmp_path):
    class Unused(Own):
        def __init__(self):
            super().__init__()
            self.other = nn.Linear(4, 4)

    job = make_job(Unused, 0, tmp_path)
    outcome = train_all(CapturedTrainer(TASK, machine=FakeMachine()), [job])[0]
    assert outcome.how.trainer == "captured"
    assert torch.equal(outcome.weights["other.weight"], job.build().other.weight)


def test_a_queue_is_short_in_time_and_grows_its_bursts_with_speed():
    class Open(lanes.Mark):
        done = False

        def query(self):
            return self.done

    queue = lanes.Queue()
    queue.batch_seconds = 0.0001
    assert queue.burst == 50
    marks = []
    while queue.has_room(0.04):
        marks.append(Open())
        queue.add(marks[-1], queue.burst)
    assert 7 <= len(marks) <= 9
    marks[0].done = marks[1].done = True
    assert queue.has_room(0.04)
    queue.batch_seconds = 10.0
    assert queue.burst == 1
