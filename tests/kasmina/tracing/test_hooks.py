"""Models that torch.fx cannot trace run by hooks as they run by themselves, and grow."""

from __future__ import annotations

import copy
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.device.rng import forked_rng
from esper.kasmina import OptimConfig, Population, PopulationConfig
from esper.kasmina.costs.seed_costs import measure_training_costs
from esper.kasmina.executors.loop import LoopExecutor
from esper.kasmina.export.export import export_pt2
from esper.kasmina.layers.random_layers import RowDraws, RowStreams
from esper.kasmina.lifecycle.gates import GateConfig
from esper.kasmina.lifecycle.lifecycle import LifecycleConfig
from esper.kasmina.rows.rows import make_plan, training_rows, whole_rows
from esper.kasmina.tracing import HostTrace, plain_model, trace_model
from esper.leyline import BlendStyle, EsperError, SeedStage
from hooked_models import CLASSES, HOOKED, WIDTH, BranchingCNN, Encoder, LoopingMLP
from support import good_signals

NAMES = tuple(HOOKED)
SAMPLES = 4


@cache
def traced(name: str) -> tuple[nn.Module, Any, HostTrace]:
    """An instance of a model, a batch for it, and its host; made once."""
    case = HOOKED[name]
    with forked_rng(1):
        model, example = case.build(), case.example(SAMPLES)
    return model, example, trace_model(model, example)


def call(model: nn.Module, raw: Any) -> Any:
    return model(raw) if isinstance(raw, Tensor) else model(**raw)


def picked(name: str, model: nn.Module, raw: Any) -> Tensor:
    return HOOKED[name].pick(call(model, raw))


def population_of(name: str, members: int = 3, **settings: Any) -> tuple[Population, Tensor]:
    _, example, host = traced(name)
    config = PopulationConfig(**settings)
    population = Population(host.factory, host.slots, host.blueprints, members, config=config)
    return population, host.inputs.pack(example)[None]


def labels() -> Tensor:
    return torch.arange(SAMPLES)[None] % CLASSES


@cache
def grown(name: str) -> Population:
    """Three members with planted seeds, one of them germinated, trained for some batches."""
    population, x = population_of(name)
    slots, kinds = population.slots, population.blueprints
    for slot in range(len(slots)):
        fitting = [
            k for k, fits in zip(kinds, population.network.fits_SK[slot], strict=True) if fits
        ]
        for member in (0, 1):
            style = list(BlendStyle)[(slot + member) % len(BlendStyle)]
            population.plant(
                [member], slots[slot], fitting[(slot + 2 * member) % len(fitting)], style
            )
    population.germinate([2], slots[-1], "twin" if "twin" in kinds else kinds[0])
    for _ in range(2):
        population.begin_step()
        population.train_batch(x, labels())
        population.end_step(good_signals(population))
    return population


# ---- the host is the model --------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_places_are_found_by_repetition(name: str):
    model, _, host = traced(name)
    assert tuple(host.places.values()) == HOOKED[name].places
    assert host.topology == HOOKED[name].topology
    assert "control flow on a value of the data" in host.hooked
    assert not host.untraced
    fresh = host.factory()
    assert type(fresh).__name__ == type(model).__name__
    assert set(fresh.state_dict()) == set(model.state_dict())


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_host_computes_what_the_model_computes(name: str, training: bool):
    """Outputs, gradients and buffers, in both modes, with the same dropout: bit for bit."""
    model, example, host = traced(name)
    own, hooked = copy.deepcopy(model).train(training), host.factory().train(training)
    with forked_rng(3):
        expected = picked(name, own, example)
    with forked_rng(3):
        found = hooked(host.inputs.pack(example), lambda _, h: h)
    assert torch.equal(found, expected)
    for out in (expected, found):
        out.square().sum().backward()
    for (_, a), (_, b) in zip(own.named_parameters(), hooked.named_parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    assert all(torch.equal(v, hooked.state_dict()[n]) for n, v in own.state_dict().items())


@pytest.mark.parametrize("name", NAMES)
def test_rows_draw_from_their_own_streams(name: str):
    """A row in training mode is the model with the numbers of the row's stream."""
    model, example, _ = traced(name)
    population, x = population_of(name, 2)
    population.train_batch(x, labels())  # finds what draws
    population.reset(0)
    network, key_R = population.network, torch.tensor([5, 6])
    rows = LoopExecutor().run(network, x, population.member_plan(), True, key_R)
    site = (network.sites or {}).get(len(network.segments) - 1)
    assert (site is None) == (name == "cnn")
    for row in range(2):
        if site is None:
            expected = picked(name, copy.deepcopy(model).train(), example)
        else:
            with RowDraws(RowStreams(key_R), site, slice(row, row + 1), stacked=False):
                expected = picked(name, copy.deepcopy(model).train(), example)
        torch.testing.assert_close(rows[row], expected, rtol=0, atol=1e-6)


def test_a_host_without_seeds_trains_as_the_model():
    model, _, host = traced("cnn")
    model = copy.deepcopy(model).train()
    optim = OptimConfig(kind="sgd", momentum=0.9, weight_decay=0.01, clip_norm=None)
    population, _ = population_of("cnn", 2, optim=optim, host_lr=0.05)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, 0.9, weight_decay=0.01)
    with forked_rng(3):
        batches = [HOOKED["cnn"].example(SAMPLES) + shift for shift in (0.5, -0.5, 0.5)]
    for raw in batches:  # both branches
        population.train_batch(host.inputs.pack(raw)[None], labels())
        optimizer.zero_grad()
        F.cross_entropy(model(raw), labels()[0]).backward()
        optimizer.step()
    trained = population.member(1).host.state_dict()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(trained[key], value, rtol=1e-5, atol=1e-5)


# ---- seeds ------------------------------------------------------------------------------------


class ByHand(nn.Module):
    """A block with a seed behind it, as a user would write it."""

    def __init__(self, block: nn.Module, seed: nn.Module) -> None:
        super().__init__()
        self.block, self.seed = block, seed

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = self.block(*args, **kwargs)
        return (self.seed(out[0]), *out[1:]) if isinstance(out, tuple) else self.seed(out)


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_seed_is_a_seed_inserted_by_hand(name: str):
    model, example, host = traced(name)
    population = grown(name)
    rows = population.forward(host.inputs.pack(example)[None])
    for index in (0, 1):
        member = population.member(index)
        by_hand = copy.deepcopy(model).eval()
        by_hand.load_state_dict(member.host.state_dict())
        assert len(member.seeds) == len(host.slots)
        for slot, seed in member.seeds.items():
            path = host.places[slot].removeprefix("after ")
            above, _, leaf = path.rpartition(".")
            setattr(by_hand.get_submodule(above), leaf, ByHand(by_hand.get_submodule(path), seed))
        expected = picked(name, by_hand.eval(), example)
        torch.testing.assert_close(rows[index], expected, rtol=1e-6, atol=1e-6)
        assert not torch.allclose(member.host(host.inputs.pack(example)), expected)


@pytest.mark.parametrize("name", NAMES)
def test_incubating_seeds_leave_the_host_as_it_is(name: str):
    """Parameters, buffers, losses of hosts and blended seeds bit for bit; the seed does train."""
    states = []
    for incubating in (False, True):
        population, x = population_of(name, 2)
        population.plant([0], population.slots[0], "twin")
        if incubating:
            population.germinate([0, 1], population.slots[1], "norm")
            seed = population.network.bank(1, population.blueprints.index("norm"))
        for step in range(3):
            population.begin_step()
            if incubating and not step:
                before = seed.flat_EP.detach().clone()
            stats = population.train_batch(x, labels())
        network = population.network
        stores = (network.host, network.bank(0, population.blueprints.index("twin")))
        held = [t for store in stores for t in (store.flat_EP.detach(), *store.fixed.values())]
        states.append([stats.loss_E, *held])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
    assert not torch.equal(seed.flat_EP, before)
    assert torch.isfinite(stats.shadow_loss_ES[:, 1]).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_prefix_of_a_shadow_row_is_computed_again_alike(name: str):
    """Also its random numbers; and only the seed it is for gets a gradient from it."""
    population, x = population_of(name, 1)
    population.plant([0], population.slots[0], "norm")
    population.germinate([0], population.slots[1], "norm")
    population.begin_step()
    population.train_batch(x, labels())
    network, life = population.network, population.lifecycle
    seen: list[tuple[int, Tensor]] = []
    network.check_activation = lambda slot, h: seen.append((slot, h.detach().clone()))  # type: ignore[method-assign]
    plan = make_plan(training_rows(life), life, network.device)
    key_R = torch.tensor([5, 6])
    out = LoopExecutor().run(network, x, plan, True, key_R)
    main, shadow = ([h for slot, h in seen if slot == 1][row] for row in (0, 1))
    assert torch.equal(main, shadow)
    kind = population.blueprints.index("norm")
    stores = [network.host.flat_EP, network.bank(0, kind).flat_EP, network.bank(1, kind).flat_EP]
    grads = torch.autograd.grad(out[1].square().sum(), stores, materialize_grads=True)
    assert [bool(grad.any()) for grad in grads] == [False, False, True]
    if name == "cnn":  # nothing random: a whole row with the same strengths
        alphas = plan.table.alpha_RS[:1].copy()
        alphas[:, 1] = 1.0
        whole = make_plan(whole_rows(np.array([0]), alphas), life, network.device)
        alone = LoopExecutor().run(network, x, whole, True)
        torch.testing.assert_close(alone[0], out[1])


def test_members_are_independent():
    both, x = population_of("encoder", 2)
    both.plant([1], both.slots[0], "mlp")
    alone, _ = population_of("encoder", 1)
    for population in (both, alone):
        for _ in range(2):
            population.train_batch(x, labels())
    assert torch.equal(both.network.host.flat_EP[0], alone.network.host.flat_EP[0])


def test_seeds_are_blended_and_pruned():
    life = LifecycleConfig(
        gates=GateConfig(min_training_steps=1), auto_forward_g2=True, min_prune_age=0
    )
    population, x = population_of("encoder", 2, lifecycle=life)
    slot = population.slots[-1]
    population.germinate([0, 1], slot, "norm")
    stages = []
    for step in range(7):
        if step == 6:
            population.prune([0], slot)
        population.begin_step()
        assert torch.isfinite(population.train_batch(x, labels()).loss_E).all()
        population.end_step(good_signals(population))
        stages.append(SeedStage(population.lifecycle.stage_ES[1, -1]))
    assert {SeedStage.BLENDING, SeedStage.HOLDING} <= set(stages)
    assert population.lifecycle.alpha_ES[:, -1].tolist() == [0.0, 1.0]
    found = population.evaluate(x, labels()).loss_R
    wanted = F.cross_entropy(population.forward(x)[1], labels()[0])
    torch.testing.assert_close(found[1], wanted)


# ---- what leaves ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_plain_model_equals_the_member(name: str):
    model, example, host = traced(name)
    population = grown(name)
    x = host.inputs.pack(example)
    for index in range(3):
        member = population.member(index)
        plain = plain_model(host, member)
        assert type(plain) is type(model)
        assert not plain.training
        kept = {n for n, _ in plain.named_parameters() if not n.startswith("seeds.")}
        assert kept == {n for n, _ in model.named_parameters()}
        assert "esper" not in {type(part).__module__.split(".")[0] for part in plain.modules()}
        with torch.no_grad():
            expected = member(x)
            assert expected.shape == (SAMPLES, CLASSES)
            for other in (plain, copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
                torch.testing.assert_close(call(other, example), expected, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(member.to_plain()(x), expected, rtol=1e-5, atol=1e-5)
    assert b"esper" not in pickle.dumps(plain)


def test_a_plain_model_trains_further():
    _, example, host = traced("cnn")
    plain = plain_model(host, grown("cnn").member(0)).train()
    plain(example).square().sum().backward()
    seeds = [p for n, p in plain.named_parameters() if n.startswith("seeds.")]
    assert seeds
    assert all(p.grad is not None for p in plain.parameters())


class Result:
    """Neither a dict nor a dataclass."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class Wraps(BranchingCNN):
    def forward(self, x: Tensor) -> Result:  # type: ignore[override]
        return Result(super().forward(x))


def test_output_names_an_attribute_or_a_key():
    images = torch.randn(SAMPLES, 3, 8, 8)
    host = trace_model(Wraps, images, output="logits")
    population = Population(host.factory, host.slots, host.blueprints, 1)
    plain = plain_model(host, population.member(0))
    assert torch.equal(plain(images), population.forward(images[None])[0])
    with pytest.raises(EsperError, match="output="):
        trace_model(Wraps, images)
    with pytest.raises(EsperError, match="'features'"):
        trace_model(LoopingMLP, HOOKED["mlp"].example(4), output="loss")


class Moody(nn.Module):
    """Cannot be traced by torch.fx, but exported by torch.export: keywords, control by the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.head = nn.Linear(6, 3)

    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        x = batch["x"]
        for block in self.blocks:
            x = torch.tanh(block(x))
            if self.training:
                x = x + 0.1
        return {"features": x, "logits": self.head(x)}


def test_what_torch_can_export_is_exported(tmp_path: Path):
    example = {"x": torch.randn(SAMPLES, 6)}
    host = trace_model(Moody, example, output="logits")
    assert "self.training" in host.hooked
    population = Population(host.factory, host.slots, host.blueprints, 1)
    population.plant([0], host.slots[0], "mlp")
    population.train_batch(host.inputs.pack(example)[None], torch.zeros(1, SAMPLES).long())
    plain = plain_model(host, population.member(0))
    export_pt2(plain, tmp_path / "net.pt2", example)
    loaded = torch.export.load(tmp_path / "net.pt2").module()
    few = {"x": torch.randn(7, 6)}
    torch.testing.assert_close(loaded(**few), plain(**few), rtol=1e-5, atol=1e-5)


def test_what_torch_cannot_export_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    _, example, host = traced("cnn")
    with pytest.raises(EsperError, match="cannot take this model") as info:
        export_pt2(plain_model(host, grown("cnn").member(0)), tmp_path / "net.pt2", example)
    assert "\n" not in str(info.value)
    assert capfd.readouterr() == ("", "")


def test_a_loaded_population_continues_bit_for_bit(tmp_path: Path):
    _, _, host = traced("encoder")
    population, x = population_of("encoder", 2)
    population.plant([0], host.slots[0], "twin")
    population.germinate([1], host.slots[1], "mlp")
    population.begin_step()
    population.train_batch(x, labels())
    population.save(tmp_path)
    again = Population.load(tmp_path, host.factory)
    for one in (population, again):
        one.train_batch(x, labels())
    assert torch.equal(again.network.host.flat_EP, population.network.host.flat_EP)
    for key, bank in population.network.banks.items():
        assert torch.equal(again.network.banks[key].flat_EP, bank.flat_EP)


# ---- costs and executors ----------------------------------------------------------------------


def test_what_shadow_rows_compute_again_is_counted():
    population, x = population_of("mlp", 1)
    population.forward(x)
    network, probe = population.network, population.probe
    assert probe is not None
    costs = measure_training_costs(network, probe, x[0])
    layers = [6 * WIDTH, WIDTH * WIDTH, WIDTH * WIDTH, WIDTH * CLASSES]
    assert probe.host_macs == sum(layers)
    again = [sum(layers) + sum(layers[slot + 1 :]) for slot in range(3)]
    assert costs.suffix_S.tolist() == again  # forward from the input, backward to the slot
    kind = population.blueprints.index("mlp")
    seed = population.seed_sizes.macs(0, kind, probe)
    blueprint_ES = np.array([[kind, kind, -1]])
    bare, blended = (
        costs.relative(blueprint_ES, np.array([[a, 0, 0]]), np.array([[False, True, False]]))
        for a in (0.0, 1.0)
    )
    extra = (blended - bare)[0] * costs.host
    assert extra == pytest.approx(costs.seed_SK[0, kind] + seed)


def test_only_the_loop_executor_runs_it():
    population, x = population_of("cnn", 2)
    population.forward(x)
    assert population.choice is not None
    assert population.choice.executor.name == "loop"
    assert "by hooks" in population.choice.reason
    forced, _ = population_of("cnn", 2, executor="vmap")
    with pytest.raises(EsperError, match=r"cannot run under executor 'vmap'.*by hooks"):
        forced.forward(x)


def test_a_place_that_control_flow_passes_by():
    """The seed is part of the module: where that is not run, the seed is not either."""

    class Skips(BranchingCNN):
        def forward(self, x: Tensor) -> Tensor:
            x = self.stage1(self.stem(x))
            x = self.stage2(x) if x.mean() < 1.0 else x[:, :1].expand(-1, 8, -1, -1)
            return self.head(x.mean((2, 3)))

    images = torch.randn(SAMPLES, 3, 8, 8)
    host = trace_model(Skips, images)
    population = Population(host.factory, host.slots, host.blueprints, 1)
    population.germinate([0], host.slots[1], "norm")
    population.begin_step()
    for scale in (1.0, 1e4):
        with torch.no_grad():
            population.network.host.flat_EP.mul_(1.0 if scale == 1 else 100.0)
        stats = population.train_batch(images[None] * scale, labels())
        assert torch.isfinite(stats.loss_E).all()


# ---- mistakes ---------------------------------------------------------------------------------


class Odd(nn.Module):
    """Blocks that are called twice, never, for nothing, or return no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice = nn.Linear(6, 6), nn.Linear(6, 6)
        self.never, self.lost = nn.Linear(6, 6), nn.Linear(6, 6)
        self.named, self.head = Named(), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(self.twice(self.first(x)))
        self.lost(x)
        if x.sum() > 1e9:
            x = self.never(x)
        return self.head(self.named(x)["x"])


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": self.inner(x)}


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        (["never"], ("'never'", "not called on the example", "first")),
        (["twice"], ("'twice'", "runs 2 times")),
        (["named"], ("'named'", "returns a dict", "named.inner")),
        (["lost"], ("'lost'", "the output does not depend on it")),
        (["head"], ("'head'", "is the output of the model")),
        (["frist"], ("'frist'", "no module of that name", "first")),
        (["first", "first"], ("two of them name one place",)),
    ],
)
def test_slots_that_cannot_be(slots: list[str], words: tuple[str, ...]):
    with pytest.raises(EsperError) as info:
        trace_model(Odd, torch.randn(4, 6), slots=slots)
    line = str(info.value)
    assert "\n" not in line
    assert all(word in line for word in words), line


def test_named_slots_and_a_number_of_them():
    images, vectors = torch.randn(4, 3, 8, 8), torch.randn(4, 6)
    host = trace_model(BranchingCNN, images, slots=["stage1.1", "stem"])
    assert host.places == {"r0c0": "after stem", "r0c1": "after stage1.1"}
    assert list(trace_model(BranchingCNN, images, slots=1).places.values()) == ["after stage2"]
    found = trace_model(Odd, vectors).places.values()
    assert set(found) <= {"after first", "after named.inner"}
    with pytest.raises(EsperError, match="different layouts"):
        trace_model(Flattens, images, slots=["conv", "linear"])


class Flattens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(144, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.head(self.linear(x.flatten(1) if x.mean() > 0 else -x.flatten(1)))


class Wrapped(nn.Module):
    """Traceable itself; what is inside is kept whole."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Encoder(2), nn.Linear(CLASSES, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(self.body(input_ids, attention_mask).logits)


def test_slots_may_be_named_inside_a_module_that_is_kept_whole():
    example = HOOKED["encoder"].example(4)
    host = trace_model(Wrapped, example, slots=["body.layers.0"])
    assert list(host.places.values()) == ["after body.layers.0"]
    assert "body is kept whole" in host.hooked


def test_a_model_that_is_mostly_one_untraceable_module_has_slots_inside_it():
    host = trace_model(Wrapped, HOOKED["encoder"].example(4))
    assert list(host.places.values()) == ["after body.layers.0", "after body.layers.1"]
    assert "body is kept whole" in host.hooked


class HeldInAList(nn.Module):
    """Parameters that no one can give from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)
        self.weights = [self.first.weight]

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x) if x.sum() > 0 else self.first(-x))
        return self.head(x @ self.weights[0])


class NothingToHook(HeldInAList):
    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(x if x.sum() > 0 else -x, self.first.weight)
        return self.head(F.relu(x))


def test_what_cannot_run_by_hooks_either_is_one_line():
    for model, words in (
        (HeldInAList, ("cannot be traced", "by hooks, either", "given from outside")),
        (NothingToHook, ("cannot be traced", "control flow on a value", "module of its own")),
    ):
        with pytest.raises(EsperError) as info:
            trace_model(model, torch.randn(4, 6))
        line = str(info.value)
        assert "\n" not in line
        assert all(word in line for word in words), line


def test_the_users_model_stays_as_it_is():
    model = LoopingMLP().eval()
    state = copy.deepcopy(model.state_dict())
    example = HOOKED["mlp"].example(4)
    generator = torch.get_rng_state()
    trace_model(model, example)
    assert torch.equal(torch.get_rng_state(), generator)
    assert not model.training
    assert all(torch.equal(v, state[n]) for n, v in model.state_dict().items())
    assert not any(part._forward_hooks for part in model.modules())
