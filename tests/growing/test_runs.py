"""A run depends on its row alone: the same after a kill, in any order, beside any neighbours."""

from __future__ import annotations

import copy
import math
import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from captured_support import make_task, table_data
from esper.device.rng import forked_rng
from esper.growing.data.reading import read_data
from esper.growing.folder import GrowFolder, read_table
from esper.growing.networks import Variant
from esper.growing.problem import make_problem
from esper.growing.runs import Recipe, Row, Table, finished, known
from esper.growing.settings import GrowSettings
from esper.growing.trainers.data import ResidentOrder, Samples
from esper.growing.trainers.eager import EagerTrainer
from esper.growing.trainers.job import Job, Outcome
from esper.growing.trainers.program import Program
from esper.growing.trainers.task import Task, scalar_loss
from esper.storage.run_files import SEARCH
from search_support import HOW, row

CPU = torch.device("cpu")


class Drawing(nn.Module):
    """Draws from all generators that there are."""

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.rand_like(x) + random.random() + np.random.rand()
        return x + 0.1 * noise if self.training else x


def model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 6), Drawing(),
        nn.ReLU(), nn.Linear(6, 3),
    )  # fmt: skip


@pytest.fixture(scope="module")
def world() -> tuple[Task, Variant]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 5, generator=generator)
    data = read_data((x, (x[:, 0] > 0).long() + (x[:, 1] > 0)))
    problem = make_problem(model, data, GrowSettings())
    inputs = problem.trace.inputs
    task = Task(
        inputs, Samples.of(data.train, inputs), Samples.of(data.val, inputs),
        scalar_loss(problem.loss), problem.metric, CPU,
    )  # fmt: skip
    return task, Variant("", problem.trace, inputs.values(data.example().inputs), 0)


RUNS = (
    (Recipe("adamw", 0.01, 0.01, 1.0, 8, 7), 0, ()),
    (Recipe("adamw", 0.03, 0.0, 0.0, 16, 9), 0, ("norm",)),
    (Recipe("sgd", 0.05, 5e-4, 1.0, 8, 5), 1, ()),
    (Recipe("sgd", 1e25, 0.0, 0.0, 8, 6), 2, ()),  # diverges
    (Recipe("adamw", 0.01, 0.01, 1.0, 8, 7), 3, ()),
)


def job(world: tuple[Task, Variant], number: int, checkpoint: Path | None = None) -> Job:
    _, variant = world
    recipe, seed, seeds = RUNS[number]
    topology = (*seeds, *variant.bare[len(seeds) :])
    return Job(number, partial(variant.build, topology, seed), recipe, seed, checkpoint)


def train(world, numbers, stop_after: int = 10**9, home: Path | None = None) -> list[Outcome]:
    """Some runs in an order; `stop_after`: ticks."""
    ticks = iter(range(10**9))
    jobs = (job(world, n, None if home is None else home / f"{n}.state") for n in numbers)
    return list(EagerTrainer(world[0]).train(jobs, lambda _: next(ticks) >= stop_after))


def facts(outcome: Outcome) -> tuple[object, ...]:
    """All of it but time."""
    weights = {name: value.numpy().tobytes() for name, value in outcome.weights.items()}
    curve = tuple((at, str(loss)) for at, loss in outcome.curve)
    return outcome.trained, outcome.finite, str(outcome.score), str(outcome.loss), curve, weights


@pytest.fixture(scope="module")
def alone(world) -> dict[int, tuple[object, ...]]:
    return {n: facts(train(world, [n])[0]) for n in range(len(RUNS))}


@pytest.fixture(autouse=True)
def every_batch(monkeypatch):
    monkeypatch.setattr("esper.growing.trainers.eager.TICK_SECONDS", -1.0)


@settings(max_examples=6)
@given(st.lists(st.integers(0, len(RUNS) - 1), min_size=1, max_size=6), st.integers(0, 99))
def test_a_run_is_the_same_in_any_order_and_beside_any_neighbours(world, alone, numbers, noise):
    torch.manual_seed(noise)
    random.seed(noise)
    np.random.seed(noise)
    found = train(world, numbers)
    assert [one.number for one in found] == numbers
    assert all(facts(one) == alone[one.number] for one in found)


@settings(max_examples=15)
@given(number=st.integers(0, len(RUNS) - 1), stops=st.lists(st.integers(0, 6), max_size=3))
@example(number=3, stops=[1])
def test_a_run_is_the_same_from_its_checkpoints(world, alone, tmp_path_factory, number, stops):
    home = tmp_path_factory.mktemp("stops")
    trained, batches = 0, RUNS[number][0].batches
    for stop in stops:
        (found,) = train(world, [number], stop, home)
        if found.trained == batches:
            break
        assert found.trained == trained + stop + 1 or not found.finite
        trained = found.trained
    (found,) = train(world, [number], home=home)
    assert facts(found) == alone[number]


def test_runs_side_by_side_batch_by_batch_are_the_same(world, alone):
    """As a trainer does that takes turns."""
    programs = [Program(job(world, n), world[0]) for n in range(len(RUNS))]
    while not all(one.done for one in programs):
        for one in programs:
            if not one.done:
                one.run_eager()
    for number, one in enumerate(programs):
        assert facts(one.outcome(HOW)) == alone[number]


def test_a_run_is_that_of_a_plain_loop():
    """Warm-up and cosine, a new order every epoch, clipping, momentum, smoothed labels."""
    task = make_task(table_data(64))
    recipe = Recipe("sgd", 0.02, 0.01, 0.5, 16, 41, label_smoothing=0.1)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    theirs = copy.deepcopy(plain)
    (found,) = EagerTrainer(task).train(iter([Job(0, lambda: plain, recipe, 3)]), lambda _: False)
    params = list(theirs.parameters())
    momenta = [torch.zeros_like(one) for one in params]
    losses, seen = [], []
    for number in range(41):
        rate = number + 1 if number < 2 else 1.5 * (1 + math.cos(math.pi * (number - 2) / 39))
        index = ResidentOrder(task.train, 16, 3).index(number)
        seen.append(index)
        (inputs,), targets = task.train.take(index)
        loss = F.cross_entropy(theirs(inputs), targets, label_smoothing=0.1)
        grads = torch.autograd.grad(loss, params)
        norm = math.sqrt(sum(float(grad.square().sum()) for grad in grads))
        for one, momentum, grad in zip(params, momenta, grads, strict=True):
            momentum.mul_(0.9).add_(grad * min(1.0, 0.5 / norm) + 0.01 * one.detach())
            one.data.sub_(0.02 * rate / 3 * momentum)
        losses.append(loss.item())
    for name, value in theirs.state_dict().items():
        assert torch.allclose(found.weights[name], value, rtol=1e-4, atol=1e-6), name
    epochs = torch.stack(seen[:39]).view(13, 48)
    assert torch.equal(epochs.sort(1).values, torch.arange(48).expand(13, -1)), "every sample once"
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 13, "in another order every time"
    points = [(2 * n, sum(losses[2 * n - 2 : 2 * n]) / 2) for n in range(1, 21)]
    assert found.curve == tuple(
        (at, pytest.approx(loss, rel=1e-4)) for at, loss in (*points, (41, losses[40]))
    )
    with torch.no_grad():
        outputs = theirs(task.val.values[0])
    assert found.loss == pytest.approx(float(F.cross_entropy(outputs, task.val.targets)), rel=1e-4)
    assert found.score == pytest.approx(
        float((outputs.argmax(1) == task.val.targets).float().mean())
    )


def test_a_checkpoint_holds_time_curve_and_the_losses_since_its_last_point(tmp_path):
    task = make_task(table_data(64))
    job = Job(0, lambda: nn.Linear(8, 3), Recipe("adamw", 0.01, 0.0, 1.0, 16, 60), 0,
              tmp_path / "state")  # fmt: skip
    program = Program(job, task)
    for _ in range(8):
        program.run_eager()
    program.seconds = 12.5
    program.save()
    again = Program(job, task)
    assert (again.trained, again.seconds, again.curve) == (8, 12.5, program.curve)
    assert len(again.curve) == 2
    assert torch.equal(again.total, program.total)
    assert float(again.total) > 0
    (found,) = EagerTrainer(task).train(iter([job]), lambda _: False)
    assert 12.5 < found.seconds < 72.5, "of both sessions"


def test_points_of_long_runs_are_means_over_several_looks():
    """The loss is looked at every 256 batches, and every 300 are a point."""
    recipe = Recipe("sgd", 0.01, 0.0, 1.0, 16, 6000)
    program = Program(Job(0, lambda: nn.Linear(8, 3), recipe, 0), make_task(table_data(64)))
    for trained, due, left in ((255, False, 5.0), (256, True, 5.0), (300, True, 0.0)):
        program.trained = trained
        program.total.fill_(5.0)
        assert program.due == due
        program.restart_total()
        assert float(program.total) == left
    ahead = {0: 256, 256: 44, 300: 212, 5999: 1}
    for program.trained, count in ahead.items():
        assert program.until_due == count
    program.recipe = replace(recipe, batches=5900 + 7)
    program.trained = 5900
    assert program.until_due == 7, "to the end of the run"


def test_a_run_is_saved_on_the_way(world, tmp_path, monkeypatch):
    monkeypatch.setattr("esper.growing.trainers.eager.CHECKPOINT_SECONDS", -1.0)
    (found,) = train(world, [0], home=tmp_path)
    assert (found.trained, Program(job(world, 0, tmp_path / "0.state"), world[0]).trained) == (7, 6)


def test_a_loss_that_is_not_finite_ends_a_run_where_it_was_seen():
    task = make_task(table_data(64))
    program = Program(
        Job(0, lambda: nn.Linear(8, 3), Recipe("sgd", 0.01, 0.0, 1.0, 16, 60), 0), task
    )
    program.trained = 9  # queued meanwhile
    program.note_loss(6, math.inf)
    program.note_loss(9, 1.0)
    assert (program.trained, program.done, program.curve) == (6, True, [(6, math.inf)])
    found = program.outcome(HOW)
    assert (found.finite, found.trained) == (False, 6)
    assert math.isnan(found.score)


@pytest.mark.parametrize("size", [1000, 7])
def test_a_network_is_judged_in_eval_mode_on_the_whole_part(monkeypatch, size):
    """In batches of any size; the modes of its parts stay as they were."""
    monkeypatch.setattr("esper.growing.trainers.task.VAL_BATCH", size)
    task = make_task(table_data(64))
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.5), nn.BatchNorm1d(6), nn.Linear(6, 3))
    network.train()[2].eval()
    score, loss, finite = task.judge(network)
    assert [part.training for part in network] == [True, True, False, True]
    with torch.no_grad():
        outputs = network.eval()(task.val.values[0])
    assert loss == pytest.approx(float(F.cross_entropy(outputs, task.val.targets)), rel=1e-5)
    assert score == pytest.approx(float((outputs.argmax(1) == task.val.targets).float().mean()))
    assert finite


def test_what_a_network_draws_depends_on_seed_and_batch_alone():
    """From the generators of torch, Python and numpy."""
    task = make_task(table_data(64))

    class Noting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            drawn.append((float(torch.rand(1)), random.random(), np.random.rand()))
            return super().forward(x)

    def draws(seed: int, noise: int) -> list[tuple[float, ...]]:
        drawn.clear()
        recipe = Recipe("sgd", 0.01, 0.0, 1.0, 16, 6)
        program = Program(Job(0, lambda: Noting(8, 3), recipe, seed), task)
        for _ in range(6):
            torch.manual_seed(noise)  # others draw in between
            random.seed(noise)
            np.random.seed(noise)
            program.step_eager()
        return list(drawn)

    drawn: list[tuple[float, ...]] = []
    with forked_rng(0, CPU):
        first = draws(3, 1)
        assert draws(3, 2) == first
        other = draws(4, 1)
    for numbers in (*zip(*first, strict=True), *zip(*other, strict=True)):
        assert len(set(numbers)) == 6, "anew in every batch"
    assert not {one for some in first for one in some} & {one for some in other for one in some}


def test_another_seed_or_recipe_gives_other_weights(alone):
    assert alone[0] != alone[4], "same recipe, another seed"
    assert len({str(one) for one in alone.values()}) == len(RUNS)


def test_a_run_that_diverges_ends_and_has_no_score(alone):
    trained, finite, score, *_ = alone[3]
    assert (trained, finite, score) == (2, False, "nan")


def test_the_users_generators_are_left_as_they_were(world):
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    wanted = torch.rand(1), random.random(), np.random.rand()
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    train(world, [0])
    assert (torch.rand(1), random.random(), np.random.rand()) == wanted


# ---- the table -----------------------------------------------------------------------------------


def test_the_key_holds_all_that_a_run_depends_on_and_nothing_else():
    one = row(3, 0.5)
    for same in ({"number": 9}, {"rung": 4}, {"parent": 1}, {"score": 0.1}, {"origin": "width"}):
        assert replace(one, **same).key == one.key
    faster = replace(one.recipe, lr=0.5)
    for other in ({"variant": 1}, {"topology": ("mlp", "")}, {"recipe": faster}, {"seed": 1},
                  {"start": 0}):  # fmt: skip
        assert replace(one, **other).key != one.key


def test_a_table_adds_up():
    rows = (
        row(0, 0.5, cost=1.0, trained=100),
        row(1, 0.5, cost=2.5, trained=10, status="cut", rung=1),
        row(2, math.nan, cost=4.0, trained=0, status="planned", rung=1),
    )
    table = Table(rows)
    assert table.compute == 125.0
    assert table.rungs == 2
    assert Table().rungs == 0
    assert [one.number for one in table.open_rows()] == [1, 2]
    assert [one.number for one in finished(rows)] == [0]
    assert [one.ended for one in rows] == [True, True, False]
    lower: Row = replace(rows[0], lower_is_better=True)
    assert (rows[0].merit, lower.merit) == (0.5, -0.5)
    assert (known(0.5), known(math.nan)) == (0.5, -math.inf)


def test_why_a_run_was_proposed_is_not_what_it_is(tmp_path):
    assert row(purpose="neighbour").key == row(purpose="finale").key
    folder = GrowFolder.create(tmp_path, "net", 0)
    for rows in ((row(0, purpose="first"),), (row(0, purpose=""),)):
        folder.save_table(Table(rows))
        assert read_table(folder.path).rows == rows
    assert "purpose" not in (folder.path / SEARCH).read_text(), "as tables were before"
    folder.close()
