"""After the choice the pick and the user's model learn from validation samples as well."""

from __future__ import annotations

import signal
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import esper
from esper.growing import refit as room
from esper.growing.clock import Clock
from esper.growing.folder import weights_path
from esper.growing.refit import MAX_SHARE, PROGRESS, Refit, _at_the_end, _has_learnt
from esper.growing.run import GrowRun
from esper.growing.runs import Row
from esper.growing.trainers.data import Samples
from esper.growing.trainers.in_process import process_trainer
from esper.growing.trainers.job import Outcome, failed_outcome
from esper.growing.trainers.task import Task
from esper.tasks.metric_forms import Metric
from search_support import HOW, RECIPE, row

X = torch.randn(260, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def grow(folder: Path, **changes: Any) -> esper.GrowResult:
    given = {"budget": esper.Budget(host_runs=1), "epochs": 8, "widths": (), "folder": folder,
             "verbose": False, "device": "cpu", "refit": True, "lr": 0.05}  # fmt: skip
    return esper.grow(mlp, (X, Y), **given | changes)


@pytest.fixture
def trained_on(monkeypatch) -> list[int]:
    """Samples of each refit."""
    sizes: list[int] = []

    def noting(task):
        sizes.append(len(task.train))
        return process_trainer(task)

    monkeypatch.setattr(room, "process_trainer", noting)
    return sizes


def test_pick_and_model_are_trained_on_train_and_val_before_test_is_looked_at(tmp_path, trained_on):
    result = grow(tmp_path)
    train, val = 260 - 2 * 52, 52
    assert trained_on == [train + val]
    records = {one.record.number: one.record for one in (*result.frontier, result.host)}
    again = {number for number, record in records.items() if record.refit}
    assert again == {result.record.pick, result.record.host.number}
    assert ", refit\n" in str(result)
    searched = grow(tmp_path, refit=False)
    assert not any(one.record.refit for one in searched.frontier)
    one, other = result.model.state_dict(), searched.model.state_dict()
    assert any(not torch.equal(one[name], other[name]) for name in one)
    assert result.best.val_score == searched.best.val_score, "it is that of the run on train"
    for loaded in (esper.GrowResult.load(result.folder), esper.GrowResult.load(result.folder, mlp)):
        assert loaded.best.record.refit
        assert all(torch.equal(value, loaded.model.state_dict()[n]) for n, value in one.items())


def test_a_resumed_search_does_not_refit_again(tmp_path, trained_on):
    first = grow(tmp_path)
    again = grow(tmp_path, resume=first.folder)
    assert len(trained_on) == 1
    one, other = first.model.state_dict(), again.model.state_dict()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    file = weights_path(first.folder, first.record.pick).with_suffix(".refit.safetensors")
    file.write_bytes(b"cut off")
    third = grow(tmp_path, resume=first.folder)
    assert len(trained_on) == 2, "what cannot be read is trained again"
    assert third.best.test_score == first.best.test_score


def test_val_that_the_user_gave_and_val_that_is_test_are_not_trained_on(tmp_path, trained_on):
    minutes = {"budget": esper.Budget(host_runs=1, minutes=1), "refit": "auto"}
    given = grow(tmp_path, val=(X[:60], Y[:60]), **minutes)
    assert not given.best.record.refit
    few = esper.grow(mlp, (X[:150], Y[:150]), epochs=2, widths=(), folder=tmp_path, verbose=False,
                     device="cpu", **minutes)  # fmt: skip
    assert not few.best.record.refit
    asked = {"epochs": 2, "widths": (), "folder": tmp_path, "verbose": False, "device": "cpu",
             "refit": True, "budget": esper.Budget(host_runs=1)}  # fmt: skip
    assert not esper.grow(mlp, (X[:150], Y[:150]), **asked).best.record.refit, "test is val"
    both = {"val": (X[:60], Y[:60]), "test": (X[:60].clone(), Y[:60])}
    assert not esper.grow(mlp, (X, Y), **both, **asked).best.record.refit, "the same samples"
    weights = torch.full((len(Y),), 1 / len(Y))
    weighted = esper.grow(mlp, (X, Y), sample_weights=weights, **asked)
    assert not weighted.best.record.refit, "those of val would count more than all others"
    assert trained_on == []
    cut = grow(tmp_path, **minutes)
    assert cut.best.record.refit
    assert len(trained_on) == 1


def test_ctrl_c_leaves_out_the_refit_and_returns_the_result(tmp_path, monkeypatch, capsys):
    asked, tick = list[int](), Refit._tick

    def interrupted(self, running):
        if not asked:
            asked.append(1)
            signal.raise_signal(signal.SIGINT)
        return tick(self, running)

    monkeypatch.setattr(Refit, "_tick", interrupted)
    before = signal.getsignal(signal.SIGINT)
    result = grow(tmp_path, verbose=True, epochs=400)
    assert not any(one.record.refit for one in result.frontier)
    assert "a refit was stopped: the weights of the search are kept" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_a_refit_that_is_stopped_in_its_last_batches_is_left_out(tmp_path, monkeypatch):
    """It is longer than the run of the search: enough batches do not make it whole."""
    tick = Refit._tick

    def interrupted(self, running):
        if running and running[0].trained >= 0.9 * running[0].batches and not self._stopped:
            signal.raise_signal(signal.SIGINT)
        return tick(self, running)

    monkeypatch.setattr(Refit, "_tick", interrupted)
    monkeypatch.setattr("esper.growing.trainers.eager.TICK_SECONDS", 0.0)
    result = grow(tmp_path, epochs=100)
    assert not any(one.record.refit for one in result.frontier)


def outcome(curve, trained: int = 108, finite: bool = True) -> Outcome:
    return Outcome(0, trained, finite, 0.5, 0.5, tuple(curve), 1.0, 0.1, HOW, {})


@pytest.mark.parametrize(
    ("found", "learnt"),
    [
        (outcome([(54, 0.9), (108, 0.2)]), True),
        (outcome([(54, 0.9), (108, 0.2 + 0.99 * (1 - PROGRESS) * 0.8)]), True),
        (outcome([(54, 0.9), (108, 0.2 + 1.01 * (1 - PROGRESS) * 0.8)]), False),
        (outcome([(54, 0.9), (108, 0.1)], finite=False), False),
        (outcome([]), False),
    ],
)
def test_weights_that_have_learnt_less_are_dropped(found, learnt):
    searched = replace(row(0), curve=((54, 1.0), (108, 0.2)))
    assert _has_learnt(searched, found) == learnt


def test_a_refit_that_has_learnt_less_leaves_the_network_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "_has_learnt", lambda row, outcome: False)
    result = grow(tmp_path)
    assert not result.best.record.refit
    plain = grow(tmp_path, refit=False)
    one, other = result.model.state_dict(), plain.model.state_dict()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_no_time_is_kept_for_what_would_take_too_much_of_it():
    class Task:
        train, val = [0] * 80, [0] * 20
        metric: Metric

    def kept(limit: float, *batches: int) -> float:
        clock = Clock(lambda: 0.0, 0.0, limit, 0.0, 1.0)
        clock.begin(row(0), 0.1, 1)
        made = Refit.__new__(Refit)
        made._clock, made._growth = clock, 1.25
        rows = [replace(row(n), recipe=replace(row().recipe, batches=b)) for n, b in
                enumerate(batches)]  # fmt: skip
        return made.seconds([replace(one, origin="width" if one.number else "given") for one in
                             rows])  # fmt: skip

    assert kept(1000.0) == 0.0
    assert kept(1000.0, 100, 300, 200) == pytest.approx(1.1 * 1.25 * (30 + 10))
    least = 1.1 * 1.25 * 40 / MAX_SHARE
    assert kept(least * 1.001, 100, 300) > 0 == kept(least * 0.999, 100, 300)


# ---- its steps, by themselves --------------------------------------------------------------------


class Folder:
    """Weights of refits, in memory."""

    def __init__(self, **kept: torch.Tensor) -> None:
        self.kept = {int(number[1:]): {"w": value} for number, value in kept.items()}

    def read_refit(self, number: int) -> dict[str, torch.Tensor] | None:
        return self.kept.get(number)

    def save_weights(self, number: int, weights: dict[str, torch.Tensor], refit: bool) -> None:
        assert refit, "the weights of the search stay"
        self.kept[number] = weights


class Refits:
    """A refit of 80 training and 20 validation samples whose trainer notes what it is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: float = 1000.0, **kept) -> None:
        self.now, self.tasks, self.jobs, self.stops = 0.0, [], [], []
        self.clock = Clock(lambda: self.now, 0.0, limit, 0.0, 1.0)
        self.clock.begin(row(0), 0.1, 1)
        train = Samples([torch.arange(80.0)[:, None]], torch.arange(80))
        val = Samples([torch.arange(80.0, 100.0)[:, None]], torch.arange(80, 100))
        task = Task(None, train, val, None, None, torch.device("cpu"))  # type: ignore[arg-type]
        networks: Any = SimpleNamespace(build=lambda row, rows: (row.number, rows))
        self.folder, self.said = Folder(**kept), list[str]()
        printer: Any = SimpleNamespace(say=self.said.append, phase=lambda name: None)
        self.made = Refit(task, networks, self.clock, self.folder, printer)  # type: ignore[arg-type]
        monkeypatch.setattr(room, "process_trainer", self._trainer)

    def _trainer(self, task: Task) -> Any:
        self.tasks.append(task)
        return SimpleNamespace(train=self._train, close=lambda: None)

    def _train(self, jobs, tick):
        self.stops.append(tick([]))
        for job in jobs:
            self.jobs.append(job)
            loss = 0.1 if job.number != 2 else 0.9
            yield replace(outcome([(1, loss)], trained=job.recipe.batches), number=job.number,
                          weights={"w": torch.tensor(job.number)})  # fmt: skip

    def weights(self, *rows) -> set[int]:
        return set(self.made.weights(rows, "all rows"))  # type: ignore[arg-type]


def searched(number: int, **changes) -> Row:
    return row(number, curve=((54, 1.0), (108, 0.2)), **changes)


def test_a_refit_is_the_run_of_its_row_on_both_parts_for_as_many_epochs(monkeypatch):
    some = Refits(monkeypatch)
    assert some.weights(searched(0), searched(1, seed=7), searched(2)) == set()
    (task,) = some.tasks
    assert torch.equal(task.train.targets, torch.arange(100))
    assert torch.equal(task.train.values[0][:, 0], torch.arange(100.0)), "each with its target"
    assert task.val is some.made._task.val
    assert [(job.number, job.seed) for job in some.jobs] == [(0, 0), (1, 7), (2, 0)]
    assert {job.recipe for job in some.jobs} == {replace(RECIPE, batches=135)}, "a fourth more"
    assert some.jobs[1].build() == (1, "all rows")
    assert not some.folder.kept, "all or none: they are compared with each other"
    assert some.said == ["a refit has learnt less: the weights of the search are kept"]
    assert some.weights(searched(0), searched(1)) == {0, 1}
    assert some.weights(searched(0), searched(1)) == {0, 1} == set(some.folder.kept), "read"
    assert len(some.jobs) == 5
    half = Refits(monkeypatch, n0=torch.tensor(0))
    assert half.weights(searched(0), searched(1)) == {0, 1}
    assert [job.number for job in half.jobs] == [1], "what is missing"
    lost = Refits(monkeypatch, n0=torch.tensor(0))
    lost.now = lost.clock.left - 1.0
    assert lost.weights(searched(0), searched(1)) == set(), "no time for the other"


@pytest.mark.parametrize("batches", [60, 120])
def test_one_that_runs_out_of_time_is_left_out_with_the_other_and_said_to_have(
    monkeypatch, batches
):
    """It takes 135 batches where the run of the search took 108."""
    some = Refits(monkeypatch)
    train = some._train

    def cut(jobs, tick):
        for outcome in train(jobs, tick):
            late = outcome.number == 1
            yield replace(outcome, trained=batches) if late else outcome

    monkeypatch.setattr(some, "_train", cut)
    assert some.weights(searched(0), searched(1)) == set()
    assert not some.folder.kept
    assert some.said == ["a refit ran out of time: the weights of the search are kept"]
    monkeypatch.setattr(some, "_train", lambda jobs, tick: islice(train(jobs, tick), 1))
    assert some.weights(searched(0), searched(1)) == set(), "the other was never begun"
    assert some.said[1:] == some.said[:1]


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        (lambda job: failed_outcome(job, torch.device("cpu"), "out of memory"), "(out of memory)"),
        (lambda job: 1 / 0, "(ZeroDivisionError"),
    ],
)
def test_a_refit_that_fails_leaves_the_networks_as_they_were(monkeypatch, fails, said):
    some = Refits(monkeypatch)
    good = some._train

    def train(jobs, tick):
        first, second = jobs
        yield from good([first], tick)
        yield fails(second)

    monkeypatch.setattr(some, "_train", train)
    assert some.weights(searched(0), searched(1)) == set(), "both or none"
    (line,) = some.said
    assert line.startswith(f"a refit failed {said}")
    assert line.endswith("the weights of the search are kept")


@pytest.mark.parametrize(("left", "reserved", "done"), [(28.0, 0.0, True), (26.0, 0.0, False),
                         (26.0, 2.0, True)])  # fmt: skip
def test_networks_are_refitted_if_there_is_time_for_all_of_them(monkeypatch, left, reserved, done):
    """Two of 10.8 s each, a fourth longer: 27 s; what is kept for them counts."""
    some = Refits(monkeypatch)
    some.clock.reserved = reserved
    some.now = some.clock.left - left
    assert some.weights(searched(0), searched(1)) == ({0, 1} if done else set())
    assert some.stops == [False] * done
    some.now += left + 1.0
    assert some.made._tick([]) == (reserved < 1.0), "it is stopped when that is over"


def test_the_loss_at_the_end_is_the_mean_of_the_last_quarter():
    curve = [(n, float(n)) for n in range(1, 9)]
    assert _at_the_end(curve) == 7.5
    assert _at_the_end(curve[:3]) == 3.0


def test_a_refit_on_all_samples_that_fails_leaves_the_pick_as_it_was(monkeypatch):
    made, said = GrowRun.__new__(GrowRun), list[str]()
    made.printer = SimpleNamespace(say=said.append)  # type: ignore[assignment]
    monkeypatch.setattr(GrowRun, "_refitted", lambda *given: 1 / 0)
    assert made.refit(None, None, 0.0) is None  # type: ignore[arg-type]
    (line,) = said
    assert line.startswith("a refit failed (ZeroDivisionError")
