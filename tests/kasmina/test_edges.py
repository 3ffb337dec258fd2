"""Corners a careful user may reach: dead gates, in-place layers, masks, odd tables, leftovers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import BlueprintRegistry, CNNHost, OptimConfig, Population, PopulationConfig
from esper.kasmina.blueprints.registry import Blueprint
from esper.kasmina.rows.rows import RowTable
from esper.leyline import BlendStyle, LifecycleOp, SeedStage
from support import batch, bring_to, good_signals, make_population, pass_step, refused

EXECUTORS = ["vmap", "loop"]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_dead_gate_does_not_outlive_its_seed(executor):
    """A NaN gate of an earlier seed must not reach a seed of another style in the same slot."""
    population = make_population(2, executor)
    bring_to(population, SeedStage.HOLDING, [0, 1], "r0c1", style=BlendStyle.GATE)
    population.network.gates[1].flat_EP.detach()[0] = float("nan")
    population.reset(1)
    population.plant([0], "r0c1", "conv_light", BlendStyle.ADD)
    population.plant([1], "r0c1", "conv_light", BlendStyle.GATE)
    for _ in range(2):
        losses = population.train_batch(*batch(2)).loss_E
    assert torch.isfinite(losses).all()
    assert torch.isfinite(population.network.host.flat_EP).all()


class InPlace(nn.Module):
    """A seed that overwrites its input, or not."""

    def __init__(self, width: int, inplace: bool) -> None:
        super().__init__()
        self.act = nn.ReLU(inplace)
        self.scale = nn.Parameter(torch.full((width, 1, 1), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.act(x - 0.1 if not self.act.inplace else x.sub_(0.1))


class InPlaceHost(CNNHost):
    """A host whose second block begins in place."""

    def __init__(self, inplace: bool) -> None:
        super().__init__(5, 1, 3, 4)
        self.blocks[0] = nn.Conv2d(1, 4, 3, padding=1)
        self.pools[0] = nn.Sequential(nn.ReLU(inplace), nn.MaxPool2d(2))


@pytest.fixture(autouse=True, scope="module")
def _registered() -> Iterator[None]:
    entries = {
        "t_in_place": lambda width: InPlace(width, True),
        "t_plain": lambda width: InPlace(width, False),
        "t_lstm": lambda width: _Recurrent(width),
    }
    for name, factory in entries.items():
        BlueprintRegistry.register(Blueprint(name, ("cnn",), 1, factory, "for a test"))
    yield
    for name in entries:
        BlueprintRegistry.unregister(name)


class _Recurrent(nn.Module):
    """A seed without a vmap rule."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.lstm(x.flatten(2).transpose(1, 2))
        return 0.01 * out.transpose(1, 2).unflatten(2, x.shape[2:])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_layers_that_work_in_place_change_nothing(executor):
    config = PopulationConfig(executor=executor)
    traces = {}
    for inplace, name in ((True, "t_in_place"), (False, "t_plain")):
        population = Population(
            lambda inplace=inplace: InPlaceHost(inplace),
            ("r0c0", "r0c1"), (name, "conv_light"), 2, config=config,
        )  # fmt: skip
        population.plant([0, 1], "r0c1", name)
        population.germinate([0, 1], "r0c0", "conv_light")
        population.begin_step()
        stats = [population.train_batch(*batch(2, seed=s)) for s in range(3)]
        traces[inplace] = torch.cat([torch.cat([s.loss_E, s.shadow_loss_ES[:, 0]]) for s in stats])
    torch.testing.assert_close(traces[True], traces[False], rtol=1e-5, atol=1e-6)


def test_a_seed_that_cannot_be_vmapped_is_refused_before_it_is_born():
    def population(executor: str) -> Population:
        config = PopulationConfig(executor=executor)  # type: ignore[arg-type]
        return Population(lambda: CNNHost(5, 1, 3, 4), ("r0c1",), ("t_lstm",), 2, config=config)

    fused = population("auto")
    line = refused(lambda: fused.germinate([0], "r0c1", "t_lstm"))
    assert "'t_lstm' cannot be vmapped" in line
    assert "executor 'loop'" in line
    assert not fused.network.banks
    assert (fused.lifecycle.stage_ES == SeedStage.DORMANT).all()
    plain = population("loop")
    plain.germinate([0], "r0c1", "t_lstm")
    plain.begin_step()
    assert torch.isfinite(plain.train_batch(*batch(2)).shadow_loss_ES[0, 0])


@pytest.mark.parametrize(
    ("action", "word"),
    [
        (lambda p: p.set_alpha_target([0], "r0c1", 0), "alpha_target 0: choose from"),
        (lambda p: p.germinate([1], "r0c1", "norm", alpha_target=0), "alpha_target 0:"),
        (lambda p: p.germinate([1, 2], "r0c1", "norm", alpha_target=np.ones(3)), "shape (3,)"),
        (lambda p: p.germinate([1, 2], "r0c1", "norm", tempo=[3, 3, 3]), "shape (3,)"),
        (lambda p: p.germinate(np.array([False, True, True]), "r0c1", "norm"), "np.flatnonzero"),
        (lambda p: p.prune([0.9], "r0c1"), "expected integers"),
        (lambda p: p.forward(batch(3)[0], [True]), "expected integers"),
        (lambda p: p.set_rates(0.9, [1.0, 2.0]), "seed_lr"),
    ],
)
def test_nothing_is_rounded_or_half_done(action, word):
    population = make_population()
    bring_to(population, SeedStage.HOLDING, [0], "r0c1")
    kept = population.lifecycle.arrays()
    kept = {name: value.copy() for name, value in kept.items()}
    rates = population.trainer.host_lr_E.clone()
    assert word in refused(lambda: action(population))
    for name, value in population.lifecycle.arrays().items():
        np.testing.assert_array_equal(value, kept[name], err_msg=name)
    assert torch.equal(population.trainer.host_lr_E, rates)


def test_a_seed_on_its_way_down_is_not_holding():
    population = make_population()
    bring_to(population, SeedStage.HOLDING, [0], "r0c1")
    population.set_alpha_target([0], "r0c1", 0.5, speed=3)
    assert not population.lifecycle.legal_ops()[0, 1, LifecycleOp.ADVANCE]
    for _ in range(3):
        pass_step(population)
    assert population.lifecycle.stage_ES[0, 1] == SeedStage.BLENDING
    assert population.lifecycle.alpha_ES[0, 1] == 0.5


def test_gradients_left_by_others_do_not_leak_in():
    clean, dirty = make_population(2), make_population(2)
    dirty.forward(batch(2, seed=4)[0], training=True).square().sum().backward()
    for population in (clean, dirty):
        population.train_batch(*batch(2))
    torch.testing.assert_close(clean.network.host.flat_EP, dirty.network.host.flat_EP)


def test_targets_of_another_shape_are_refused():
    population = make_population(3)
    x, y = batch(3)
    for wrong in (y[:2], y[:, :4], y[0], y.T):
        assert "targets of shape" in refused(lambda wrong=wrong: population.train_batch(x, wrong))
        assert "targets of shape" in refused(lambda wrong=wrong: population.evaluate(x, wrong))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"start_R": [-1, -1, 3]}, "rows start at slots"),
        ({"source_R": [0, 0, 7]}, "no such row"),
        ({"source_R": [0, 0, 1]}, "its own member"),
        ({"source_R": [0, 0, 2]}, "computed before"),
        ({"alpha_RS": np.full((3, 3), np.nan)}, "finite"),
        ({"alpha_RS": np.full((3, 3), -1.0)}, "finite and 0 or more"),
    ],
)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_table_that_makes_no_sense_is_refused(executor, changes, word):
    population = make_population(2, executor)
    good = {
        "member_R": [0, 1, 0],
        "alpha_RS": np.zeros((3, 3)),
        "start_R": [-1, -1, 1],
        "source_R": [0, 0, 0],
        "shadow_R": [False] * 3,
    }
    population.forward(batch(2)[0], RowTable(**{k: np.asarray(v) for k, v in good.items()}))
    table = RowTable(**{k: np.asarray(v) for k, v in (good | changes).items()})
    assert word in refused(lambda: population.forward(batch(2)[0], table))


def test_the_first_call_may_come_from_inference_mode_or_with_one_sample():
    population = make_population(2, "auto", kind="batchnorm")
    x, y = batch(2, kind="batchnorm", size=1)
    with torch.inference_mode():
        population.evaluate(x, y)
    assert population.choice.executor.name == "vmap"
    population.train_batch(*batch(2, kind="batchnorm"))
    population.end_step(good_signals(population))


def test_adamw_without_memory_of_the_mean():
    population = make_population(2, optim=OptimConfig(kind="adamw", betas=(0.0, 0.99)))
    assert torch.isfinite(population.train_batch(*batch(2)).loss_E).all()
    assert torch.isfinite(population.network.host.flat_EP).all()
    assert "betas=(0.9, 1.0)" in refused(lambda: OptimConfig(betas=(0.9, 1.0)))
