"""A user's own training step, optimiser and schedule."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import esper
from captured_support import RECIPE, FakeMachine, digest, make_job, make_task, table_data, train_all
from esper.growing.trainers.captured import CapturedTrainer
from esper.growing.trainers.eager import EagerTrainer
from esper.growing.trainers.own_training import OwnTraining
from esper.growing.trainers.program import Program
from support import refused

TASK = make_task(table_data())


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def own_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)


def own_adamw(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=RECIPE.lr, weight_decay=RECIPE.weight_decay, fused=True)


def groups(params: Any) -> torch.optim.Optimizer:
    first, rest = {"params": params[:2], "lr": 0.03}, {"params": params[2:]}
    return torch.optim.RMSprop([first, rest], lr=0.01)


def momentum(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


class Counting(torch.optim.Optimizer):
    """Keeps a number of Python's beside its tensors."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                state["step"] = state.get("step", 0) + 1
                param.sub_(param.grad, alpha=float(group["lr"]) / state["step"])


class Lookahead(torch.optim.Optimizer):
    """Wraps another; its slow weights follow every fifth step, counted in `param_groups`."""

    def __init__(self, params: Any) -> None:
        self.inner = torch.optim.AdamW(params, lr=0.05, fused=True)
        super().__init__(self.inner.param_groups, {})
        self.param_groups = self.inner.param_groups

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.inner.step()
        for group in self.param_groups:
            group["counter"] = (group.get("counter", 0) + 1) % 5
            for param in group["params"]:
                slow = self.state[param].setdefault("slow", param.detach().clone())
                if group["counter"] == 0:
                    param.copy_(slow.lerp_(param, 0.5))


class Adapting(Counting):
    """Keeps a distance, an attribute, lists of tensors, and state of no parameter."""

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.param_groups[0] |= {"d": 1e-6, "history": [0.1], "names": (len, str)}
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.steps += 1
        group = self.param_groups[0]
        group["d"] *= 1.0 + 1.0 / (2 + self.steps)
        group["history"] = [*group["history"][-2:], group["d"] / 3]
        total = self.state["all"].setdefault("total", torch.zeros(()))
        for param in group["params"]:
            mine = self.state[param]
            if not mine:
                size = len(param)
                basis = torch.linalg.qr(torch.rand(size, size)).Q
                mine |= {"bases": [basis.mT.contiguous().mT], "moments": {"first": param * 0}}
            moment, basis = mine["moments"]["first"], mine["bases"][0]
            moment.lerp_(param.grad, 0.3)
            total.add_(moment.abs().mean())
            turned = basis @ moment.flatten(1 if moment.ndim > 1 else 0).view(len(param), -1)
            scale = float(group["lr"]) * (1.0 + sum(group["history"]) + group["d"])
            param.sub_((basis.mT @ turned).view_as(param) / (1.0 + total), alpha=scale)


class Unsaveable(Counting):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        for param in self.param_groups[0]["params"]:
            self.state[param]["past"] = deque([1.0])


def trained(folder: Path, own: OwnTraining, trainer: Any = EagerTrainer, **recipe: Any) -> Any:
    folder.mkdir(exist_ok=True)
    job = make_job(mlp, 0, folder, **recipe)
    return digest(train_all(trainer(replace(TASK, own=own)), [job])[0])


def test_a_step_like_the_built_in_one_trains_the_same_network(tmp_path):
    expected = trained(tmp_path / "a", OwnTraining())
    assert trained(tmp_path / "b", OwnTraining(own_step)) == expected
    twice = OwnTraining(lambda model, batch: 2.0 * own_step(model, batch))
    assert trained(tmp_path / "c", twice, clip=0.0) != trained(tmp_path / "d", OwnTraining())


@pytest.mark.parametrize("multiple", [1.0, 3.0])
def test_an_optimiser_like_the_built_in_one_trains_the_same_network(tmp_path, multiple):
    expected = trained(tmp_path / "a", OwnTraining(), lr=RECIPE.lr * multiple)
    own = OwnTraining(optimizer=own_adamw)
    assert trained(tmp_path / "b", own, optimizer="own", lr=multiple) == expected


@pytest.mark.parametrize("optimizer", [None, own_adamw])
def test_a_schedule_is_stepped_after_every_batch_and_scaled_with_the_rate(optimizer):
    exponential = torch.optim.lr_scheduler.ExponentialLR
    own = OwnTraining(None, optimizer, lambda it, batches: exponential(it, 0.9), RECIPE.lr)
    unit = RECIPE.lr if optimizer is None else 1.0
    for multiple in (1.0, 3.0):
        recipe = replace(RECIPE, optimizer="own" if optimizer else "adamw", lr=multiple * unit)
        update = own.update([nn.Parameter(torch.ones(1))], recipe, recipe.lr)
        expected = [multiple * unit * 0.9**batch for batch in range(recipe.batches)]
        assert own.rates(recipe, update) == pytest.approx(expected)


def test_a_schedule_may_set_rates_of_its_own():
    cycle = torch.optim.lr_scheduler.OneCycleLR
    own = OwnTraining(None, None, lambda it, n: cycle(it, 0.5, total_steps=n), RECIPE.lr)
    rates = own.rates(RECIPE, own.update([nn.Parameter(torch.ones(1))], RECIPE, RECIPE.lr))
    assert max(rates) == pytest.approx(0.5)
    assert len(rates) == RECIPE.batches


def test_each_group_keeps_its_own_rate():
    params = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    update = OwnTraining(optimizer=groups).update(params, replace(RECIPE, optimizer="own"), 1.0)
    for param in params:
        param.grad = torch.ones(2)
    update.lr = 0.5
    update.step()
    assert [group["lr"] for group in update.own.param_groups] == [0.015, 0.005]  # type: ignore[attr-defined]


@pytest.mark.parametrize("make", [own_adamw, groups, Counting, Lookahead, Adapting])
def test_a_run_that_was_cut_resumes_bit_for_bit(tmp_path, make):
    task = replace(TASK, own=OwnTraining(own_step, make))
    whole = Program(make_job(mlp, 0, tmp_path, optimizer="own", lr=1.0), task)
    cut = Program(make_job(mlp, 1, tmp_path, seed=0, optimizer="own", lr=1.0), task)
    for _ in range(7):
        cut.run_eager()
    cut.save()
    again = Program(make_job(mlp, 1, tmp_path, seed=0, optimizer="own", lr=1.0), task)
    assert again.trained == 7
    for program in (whole, again):
        while not program.done:
            program.run_eager()
    assert all(map(torch.equal, whole.weights().values(), again.weights().values()))


def test_matrices_of_an_optimiser_lie_in_memory_as_they_did(tmp_path):
    """Products of large ones round differently if they lie otherwise."""
    task = replace(TASK, own=OwnTraining(own_step, Adapting))
    job = make_job(mlp, 0, tmp_path, optimizer="own", lr=1.0)
    cut = Program(job, task)
    cut.run_eager()
    cut.save()
    kept = [program.optimizer.kept().tensors for program in (cut, Program(job, task))]
    strides = [{name: value.stride() for name, value in one.items()} for one in kept]
    assert strides[0] == strides[1]
    assert (1, 6) in strides[0].values(), "a transposed one"


def test_state_that_cannot_be_saved_is_refused_by_the_first_batch(tmp_path):
    task = replace(TASK, own=OwnTraining(own_step, Unsaveable))
    program = Program(make_job(mlp, 0, tmp_path, optimizer="own", lr=1.0), task)
    assert "Unsaveable keeps a deque ('past')" in refused(program.run_eager)


def test_settings_of_an_optimiser_are_those_that_it_is_made_with(tmp_path):
    """Where a run is continued they may be others, as `fused`."""

    def saved(fused: bool) -> Program:
        make = partial(torch.optim.AdamW, lr=0.01, fused=fused)
        job = make_job(mlp, 0, tmp_path, optimizer="own", lr=1.0)
        program = Program(job, replace(TASK, own=OwnTraining(own_step, make)))
        program.run_eager()
        program.save()
        return program

    saved(True)
    again = saved(False)
    assert again.trained == 2
    assert not again.optimizer.own.param_groups[0]["fused"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("make", "name"), [(Lookahead, "counter"), (Counting, "step")])
def test_an_optimiser_that_counts_in_python_is_not_captured(tmp_path, make, name):
    """Its replays would be right at first, and never take the step that comes every so often."""
    task = replace(TASK, own=OwnTraining(own_step, make))
    job = make_job(mlp, 0, tmp_path, optimizer="own", lr=1.0)
    how = train_all(CapturedTrainer(task, machine=FakeMachine()), [job])[0].how
    assert (how.trainer, how.note) == ("eager", f"the optimizer changes {name!r} in every batch")


@pytest.mark.parametrize("make", [own_adamw, momentum])
def test_what_is_captured_trains_as_it_does_eagerly(tmp_path, make):
    """Bit for bit on a GPU (tests/cuda), where the rate is a tensor either way."""
    task, machine = replace(TASK, own=OwnTraining(own_step, make)), FakeMachine()
    (tmp_path / "eager").mkdir()
    (tmp_path / "captured").mkdir()
    eager, captured = (
        train_all(trainer, [make_job(mlp, 0, tmp_path / name, optimizer="own", lr=1.0)])[0]
        for name, trainer in (
            ("eager", EagerTrainer(task)),
            ("captured", CapturedTrainer(task, machine=machine)),
        )
    )
    assert machine.captures > 0
    for name, value in eager.weights.items():
        torch.testing.assert_close(captured.weights[name], value, rtol=1e-4, atol=1e-5)


# ---- grow ----------------------------------------------------------------------------------------


def grow(folder: Path, **settings: Any) -> esper.GrowResult:
    x, y = (value.numpy() for value in table_data())
    chosen = {"budget": esper.Budget(host_runs=3), "epochs": 8, "widths": (2.0,)} | settings
    return esper.grow(mlp, (x, y), folder=folder, device="cpu", verbose=False, **chosen)


def halving(optimizer: torch.optim.Optimizer, batches: int) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, max(1, batches // 4), 0.5)


def test_a_search_trains_by_the_users_step_optimiser_and_schedule(tmp_path):
    seen = list[tuple[int, ...]]()

    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.append(tuple(batch[0].shape))
        return own_step(model, batch)

    result = grow(tmp_path, train_step=step, optimizer=groups, scheduler=halving)
    rows = result.table().rows
    assert len(seen) >= sum(row.trained for row in rows)
    assert {row.recipe.optimizer for row in rows} == {"own"}
    assert {row.recipe.augment for row in rows} == {"none"}
    assert {round(row.recipe.lr, 3) for row in rows} >= {1.0}
    assert result.best.val_score > 0.6
    assert "function of your own" in refused(result.best.code)
    text = refused(
        lambda: grow(tmp_path, train_step=own_step, optimizer=groups, resume=result.folder)
    )
    assert "train_step" in text


def test_a_step_is_given_inputs_as_the_model_takes_them(tmp_path):
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 3)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.layer(torch.cat([left, right], 1))

    x, y = (value.numpy() for value in table_data())
    names = set[str]()

    def step(model: nn.Module, batch: tuple[dict[str, Tensor], Tensor]) -> Tensor:
        names.update(batch[0])
        return F.cross_entropy(model(**batch[0]), batch[1])

    data = {"left": np.ascontiguousarray(x[:, :4]), "right": np.ascontiguousarray(x[:, 4:])}, y
    esper.grow(Two, data, budget=esper.Budget(host_runs=1), epochs=2, widths=(), device="cpu",
               folder=tmp_path, verbose=False, train_step=step)  # fmt: skip
    assert names == {"left", "right"}


@pytest.mark.parametrize(("settings", "text"), [
    ({"train_step": lambda model, batch: 3.0}, "train_step returned"),
    ({"train_step": lambda model, batch: model(batch[0])}, "train_step returned"),
    ({"train_step": "mine"}, "train_step="),
    ({"train_step": "mine.py:step"}, "give the function"),
    ({"optimizer": lambda params: None}, "optimizer returned"),
    ({"optimizer": torch.optim.LBFGS}, "needs a closure"),
    ({"optimizer": own_adamw, "lr": 0.1}, "leave lr out"),
    ({"optimizer": own_adamw, "weight_decay": 0.1}, "leave weight_decay out"),
    ({"scheduler": lambda optimizer, batches: 3}, "scheduler returned"),
    ({"scheduler": 3}, "scheduler="),
    ({"train_step": own_step, "augment": "mixup"}, "mixup"),
    ({"train_step": own_step, "sample_weights": np.ones(96, np.float32)}, "sample_weights"),
])  # fmt: skip
def test_what_is_wrong_is_one_line(tmp_path, settings, text):
    assert text in refused(lambda: grow(tmp_path, **settings))
