"""A save holds everything: loaded in a fresh process, it goes on as if it had never stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import (
    BlueprintRegistry,
    CNNHost,
    LifecycleConfig,
    MorphogeneticModel,
    OptimConfig,
    Population,
    PopulationConfig,
    blueprint,
)
from esper.kasmina.lifecycle.gates import GateConfig
from esper.kasmina.training.losses import cross_entropy
from esper.leyline import BlendStyle, GateSignals, InjectionSpec, SeedStage
from saving_cases import (
    FIVE,
    bits,
    every_stage,
    in_fresh_process,
    next_round,
    outputs,
    raw,
    small,
    train_on,
)
from support import (
    KINDS,
    batch,
    bring_to,
    good_signals,
    make_population,
    pass_step,
    refused,
    tiny_host,
)


def test_the_case_holds_every_stage_and_style():
    life = every_stage().lifecycle
    assert {SeedStage(s) for s in np.unique(life.stage_ES)} == set(SeedStage)
    assert set(life.style_ES[life.occupied()].tolist()) == {int(style) for style in BlendStyle}
    assert ((life.stage_ES == SeedStage.BLENDING) & life.pruning_ES & (life.alpha_ES < 1)).any()
    ramping = (life.stage_ES == SeedStage.BLENDING) & ~life.pruning_ES
    assert (life.alpha_ES[ramping] == 0.75).all()


MAKES = [("loop", "sgd"), ("vmap", "adamw")]


@pytest.fixture(scope="module")
def stories(tmp_path_factory):
    """Populations, and what one fresh process told of their saves."""
    top = tmp_path_factory.mktemp("populations")
    populations = {make: every_stage(*make) for make in MAKES}
    for number, population in enumerate(populations.values()):
        population.save(top / str(number))
    reported = in_fresh_process(f"population_stories({str(top)!r}, {len(MAKES)})")
    return {make: (populations[make], story) for make, story in zip(MAKES, reported, strict=True)}


@pytest.mark.parametrize(("executor", "kind"), MAKES)
def test_a_population_resumes_in_a_fresh_process_bit_for_bit(executor, kind, stories):
    """Outputs, eight steps of training with every operation, and the next round."""
    p, reported = stories[executor, kind]
    expected = {f"at once {name}": value for name, value in bits(p).items()}
    expected |= raw({"outputs": outputs(p)}) | raw(train_on(p))
    expected |= bits(p) | next_round(p)
    assert reported.keys() == expected.keys()
    assert [name for name in expected if reported[name] != expected[name]] == []


def test_a_member_in_a_fresh_process_gives_the_same_output_bit_for_bit(tmp_path):
    p = every_stage()
    for index in range(FIVE):
        p.member(index).save(tmp_path / str(index))
    seen: set[SeedStage] = set()
    for index, reported in enumerate(in_fresh_process(f"member_stories({str(tmp_path)!r})")):
        model = p.member(index)
        expected = raw({"outputs": outputs(model)}) | raw(dict(model.named_parameters()))
        expected |= {"reports": repr(model.reports), "member": str(index)}
        assert reported == expected
        seen |= {report.stage for report in model.reports}
    assert seen == set(SeedStage)


def test_a_loaded_member_has_parameters_of_its_own(tmp_path):
    p = every_stage()
    p.member(0).save(tmp_path)
    model = MorphogeneticModel.load(tmp_path, tiny_host)
    for parameter in model.parameters():
        assert parameter.untyped_storage().nbytes() == parameter.nbytes, "a view of something else"
    before = outputs(model)
    pass_step(p, train=True)
    assert torch.equal(outputs(model), before)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = batch(1)
    nn.functional.cross_entropy(model(x[0]), y[0]).backward()
    optimizer.step()
    changed = outputs(model)
    assert not torch.equal(changed, before)
    model.save(tmp_path)
    assert torch.equal(outputs(MorphogeneticModel.load(tmp_path, tiny_host)), changed)


def test_saving_and_loading_disturb_nothing(tmp_path):
    p = every_stage()
    before, generator = bits(p), torch.get_rng_state()
    p.save(tmp_path)
    Population.load(tmp_path, tiny_host)
    p.member(1).save(tmp_path / "member")
    MorphogeneticModel.load(tmp_path / "member", tiny_host)
    assert bits(p) == before
    assert torch.equal(torch.get_rng_state(), generator)


def test_all_settings_come_back(tmp_path):
    config = PopulationConfig(
        executor="loop",
        host_lr=0.1 + 0.2,
        seed_lr=1e-7,
        seed_lr_scaling="weight_norm",
        detach_seed_input=True,
        optim=OptimConfig("adamw", 0.5, True, (0.8, 0.99), 1e-6, 0.1, None),
        lifecycle=LifecycleConfig(
            GateConfig("strict", 5, 0.0, 0.25, 0.125, 0.0625), False, True, False, 2, 3, 2, 4, 3
        ),
    )
    p = Population(tiny_host, ("r1c1", "r0c0"), ("norm",), 2, seed=2**63, config=config)
    p.save(tmp_path)
    loaded = Population.load(tmp_path, tiny_host)
    assert loaded.config == config
    assert bits(loaded) == bits(p)
    assert loaded.trainer.weight_norm_rates
    assert loaded.slots == ("r0c0", "r1c1")
    assert loaded.lifecycle.config == config.lifecycle


def test_another_executor_may_be_chosen(tmp_path):
    p = every_stage("vmap")
    p.save(tmp_path)
    loaded = Population.load(tmp_path, tiny_host, executor="loop")
    assert loaded.config == replace(p.config, executor="loop")
    torch.testing.assert_close(outputs(loaded), outputs(p), rtol=1e-5, atol=1e-5)
    assert loaded.choice.executor.name == "loop"
    line = refused(lambda: Population.load(tmp_path, tiny_host, executor="lop"))
    assert "did you mean 'loop'" in line


@pytest.mark.parametrize("wanted", ["auto", "vmap"])
def test_the_executor_that_ran_goes_on_whatever_became_of_the_members(wanted, tmp_path):
    """A trial of executors on a member that has diverged would end otherwise than at the start."""
    p = make_population(2, wanted)
    outputs_before = p.forward(batch(2)[0])
    assert p.choice.executor.name == "vmap"
    p.network.host.flat_EP.detach()[0] = torch.nan
    p.save(tmp_path)
    loaded = Population.load(tmp_path, tiny_host)
    out = loaded.forward(batch(2)[0])
    assert loaded.choice.executor.name == "vmap"
    assert torch.equal(out[1], outputs_before[1])
    assert out[0].isnan().all()


def test_signals_of_any_precision_and_later_edits_do_not_reach_the_save(tmp_path):
    """The lifecycle keeps float32 copies, so the save holds what the gates read."""
    p = make_population(2, "loop")
    bring_to(p, SeedStage.TRAINING, [1], "r0c0")
    given = good_signals(p)
    wide = GateSignals(*(getattr(given, n).astype(np.float64) for n in given.__slots__))
    p.end_step(wide)
    before = bits(p)
    wide.host_loss_E[:] = 99.0
    assert bits(p) == before
    p.save(tmp_path)
    assert bits(Population.load(tmp_path, tiny_host)) == before


class StatisticsHost(CNNHost):
    """With running statistics: buffers that change in training."""

    def __init__(self) -> None:
        super().__init__(5, 1, 2, 4)
        for block in self.blocks:
            block.norm = nn.BatchNorm2d(block.conv.weight.shape[0])
        self.blocks[0].norm.weight.requires_grad_(False)


class Masked(nn.Module):
    """A linear map times a buffer that is not part of its state_dict."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.mask


class TiedHost(nn.Module):
    """One weight and one buffer under two names, and no slot at all."""

    topology = "mlp"

    def __init__(self) -> None:
        super().__init__()
        mask = torch.linspace(0.5, 1.0, 6)
        self.inner, self.outer = Masked(mask), Masked(mask)
        self.outer.linear.weight = self.inner.linear.weight

    def segments(self) -> tuple[nn.Module, ...]:
        return (self.inner, self.outer)

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        return ()

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x))


@pytest.mark.parametrize("kind", ["cnn", "batchnorm", "transformer"])
def test_hosts_and_blueprints_of_every_topology(kind, tmp_path):
    p, made = make_population(2, "loop", kind=kind), KINDS[kind]
    for index, name in enumerate(made.blueprints):  # an mlp blueprint is called `gate`: no gate
        p.plant([index % 2], made.slots[index // 2], name, style=BlendStyle.GATE)
    p.train_batch(*batch(2, kind=kind))
    p.save(tmp_path)
    loaded = Population.load(tmp_path, made.host)
    assert bits(loaded) == bits(p)
    x, y = batch(2, seed=1, kind=kind)
    p.train_batch(x, y)
    loaded.train_batch(x, y)
    assert bits(loaded) == bits(p)
    p.member(1).save(tmp_path)
    again = MorphogeneticModel.load(tmp_path, made.host)
    assert torch.equal(again.eval()(x[1]), p.member(1).eval()(x[1]))


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_running_statistics_and_frozen_parameters_are_saved(executor, tmp_path):
    config = PopulationConfig(executor=executor)
    p = Population(StatisticsHost, ("r0c0",), ("conv_light",), 2, config=config)
    p.plant([1], "r0c0", "conv_light")
    p.train_batch(*batch(2))
    assert p.network.host.fixed["blocks.1.norm.running_mean"].abs().sum() > 0
    p.save(tmp_path)
    loaded = Population.load(tmp_path, StatisticsHost)
    x, y = batch(2, seed=1)
    assert torch.equal(loaded.train_batch(x, y).loss_E, p.train_batch(x, y).loss_E)
    assert bits(loaded) == bits(p)
    member = p.member(1).eval()
    member.save(tmp_path)
    again = MorphogeneticModel.load(tmp_path, StatisticsHost).eval()
    assert torch.equal(again(x[1]), member(x[1]))


def test_what_is_tied_stays_one_thing(tmp_path):
    p = Population(TiedHost, (), (), 2)
    x, y = torch.randn(2, 4, 6), torch.randint(0, 6, (2, 4))
    p.train_batch(x, y)
    p.save(tmp_path)
    loaded = Population.load(tmp_path, TiedHost)
    assert torch.equal(loaded.train_batch(x, y).loss_E, p.train_batch(x, y).loss_E)
    assert bits(loaded) == bits(p)
    p.member(1).save(tmp_path)
    member = MorphogeneticModel.load(tmp_path, TiedHost)
    assert member.host.outer.linear.weight is member.host.inner.linear.weight
    assert member.host.outer.mask is member.host.inner.mask
    assert "inner.mask" not in member.host.state_dict()
    assert torch.equal(member(x[1]), p.member(1)(x[1]))


# ---- a save that does not fit the code ------------------------------------------------------


class Wider(CNNHost):
    def __init__(self) -> None:
        super().__init__(5, 1, 3, 4)
        self.head.extra = nn.Parameter(torch.zeros(3))


class Turned(CNNHost):
    topology = "mlp"


def as_cnn_host(cls: type[CNNHost], *sizes: int) -> Callable[[], nn.Module]:
    """The factory of a class that calls itself CNNHost."""
    return type("CNNHost", (cls,), {"__init__": lambda self: cls.__init__(self, *sizes)})


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (Wider, ["host class_name: saved 'CNNHost'", "now give 'Wider'"]),
        (as_cnn_host(Turned, 5, 1, 3, 4), ["host topology: saved 'cnn'", "now give 'mlp'"]),
        (lambda: CNNHost(5, 1, 1, 4), ["slot r0c1: saved 8 channels", "now give none"]),
        (lambda: CNNHost(5, 1, 3, 8), ["slot r0c0: saved 4 channels", "now give 8 channels"]),
        (lambda: CNNHost(7, 1, 3, 4), ["head.linear.weight': saved (5, 16) float32", "(7, 16)"]),
        (as_cnn_host(Wider), ["head.extra': saved none", "now give (3,) float32"]),
        (lambda: tiny_host().double(), ["blocks.0.conv.weight'", "float32", "float64"]),
        (lambda: nn.Linear(2, 2), ["Linear is not a host"]),
    ],
)
@pytest.mark.parametrize("kind", ["population", "member"])
def test_a_host_that_differs_is_refused_by_naming_the_difference(kind, factory, words, tmp_path):
    p = small(1)
    (p if kind == "population" else p.member(1)).save(tmp_path)
    loader = Population.load if kind == "population" else MorphogeneticModel.load
    line = refused(lambda: loader(tmp_path, factory))
    for word in words:
        assert word in line
    loader(tmp_path, tiny_host)


class Scale(nn.Module):
    """A learnt factor per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((width,), 0.05))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor[:, None, None]


class OneScale(Scale):
    """One factor for all channels."""

    def __init__(self, width: int) -> None:
        super().__init__(1)


def test_a_blueprint_that_is_gone_or_changed_is_named(tmp_path):
    blueprint("test_scale", topologies=("cnn",))(Scale)
    try:
        p = Population(tiny_host, ("r0c0",), ("norm", "test_scale"), 2)
        p.plant([0], "r0c0", "test_scale")
        p.save(tmp_path / "population")
        p.member(0).save(tmp_path / "member")
    finally:
        BlueprintRegistry.unregister("test_scale")
    loads = (
        lambda: Population.load(tmp_path / "population", tiny_host),
        lambda: MorphogeneticModel.load(tmp_path / "member", tiny_host),
    )
    for load in loads:
        line = refused(load)
        assert "the blueprint 'test_scale', which is not registered for cnn hosts" in line
    blueprint("test_scale", topologies=("cnn",))(OneScale)
    try:
        for load in loads:
            line = refused(load)
            assert "factor': saved (4,) float32" in line
            assert "give (1,)" in line
    finally:
        BlueprintRegistry.unregister("test_scale")


def doubled(logits: Tensor, target: Tensor) -> Tensor:
    return 2.0 * cross_entropy(logits, target)


def test_the_loss_is_code_and_must_be_given_again(tmp_path):
    p = Population(tiny_host, ("r0c0",), ("norm",), 2, loss=doubled)
    p.save(tmp_path)
    line = refused(lambda: Population.load(tmp_path, tiny_host))
    assert "trained on the loss 'doubled', given 'cross_entropy'" in line
    assert Population.load(tmp_path, tiny_host, loss=doubled).loss is doubled
