"""A twin is the host's own segment: unchanged output at birth, current weights, alive at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from call_support import differences, python_calls
from esper.kasmina import MorphogeneticModel, Population, PopulationConfig
from esper.leyline import BlendStyle, InjectionSpec, LifecycleOp, SeedStage
from own_host import OwnHost, images, labels
from support import KINDS, batch, bring_to, make_population, pass_step, refused

EXECUTORS = ("vmap", "loop")


class Strided(nn.Module):
    """A user's residual block; a projection where the width or the size changes."""

    residual = True

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1)
        self.norm2 = nn.GroupNorm(2, c_out)
        same = c_in == c_out and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(c_in, c_out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(h)) + self.skip(x))


class UsersHost(nn.Module):
    """Segments of a user: strided, same shape, pre-activation, pooled; a frozen layer."""

    topology = "cnn"
    widths = (4, 4, 6, 8)

    def __init__(self) -> None:
        super().__init__()
        before = nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3, 2, 1))
        after = nn.Sequential(nn.Conv2d(6, 8, 3, padding=1), nn.AvgPool2d(2), nn.Dropout(0.2))
        before[2].bias.requires_grad_(False)  # type: ignore[union-attr]
        head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
        chain = [Strided(1, 4, 2), Strided(4, 4, 1), before, after, head]
        self.chain = nn.ModuleList(chain)

    def segments(self) -> Sequence[nn.Module]:
        return tuple(self.chain)

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        return tuple(InjectionSpec(f"r0c{i}", c, i, "after") for i, c in enumerate(self.widths))

    def forward(self, x: Tensor) -> Tensor:
        for segment in self.segments():
            x = segment(x)
        return x


CASES = (*KINDS, "user")
IN_TURN = [(kind, EXECUTORS[number % 2]) for number, kind in enumerate(CASES)]
SLOTS = {
    "user": ("r0c0", "r0c1", "r0c2", "r0c3"),
    "resnet": ("r0c0", "r1c0", "r0c1", "r1c1", "r0c2", "r1c2"),
}


def twins(kind: str, executor: str = "vmap", members: int = 3, **settings: object) -> Population:
    """A population that offers twins, with hosts that have trained a little."""
    config = PopulationConfig(executor=executor, **settings)  # type: ignore[arg-type]
    host = UsersHost if kind == "user" else KINDS[kind].host
    slots = SLOTS[kind] if kind in SLOTS else KINDS[kind].slots
    population = Population(host, slots, ("twin",), members, config=config)
    for seed in (11, 12):
        population.train_batch(*data(kind, members, seed))
    return population


def data(kind: str, members: int = 3, seed: int = 0, size: int = 6) -> tuple[Tensor, Tensor]:
    return batch(members, seed, size=size, kind="cnn" if kind == "user" else kind)


def inherited(population: Population, slot: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Tensor of the twins in a slot -> its values, and those of the hosts, `[E, ...]` each."""
    bank, host = population.network.banks[slot, 0], population.network.host
    own = bank.named(bank.flat_EP.detach()) | bank.fixed
    theirs = host.named(host.flat_EP.detach()) | host.fixed
    return {n: (own[n], theirs[h]) for n, h in bank.template.inherited.items()}


def fresh_names(population: Population, slot: int) -> set[str]:
    bank = population.network.banks[slot, 0]
    return {*bank.shapes, *bank.fixed} - {*bank.template.inherited}


@pytest.mark.parametrize(("kind", "executor"), IN_TURN)
def test_outputs_are_unchanged_at_birth(kind, executor):
    population = twins(kind, executor)
    assert population.network.fits_SK.all()
    x, _ = data(kind, seed=3)
    before = population.forward(x)
    for slot, style in zip(population.slots, [*BlendStyle, *BlendStyle], strict=False):
        population.plant([0, 2], slot, "twin", style)
    after = population.forward(x)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6)
    assert torch.equal(after[1], before[1])


@pytest.mark.parametrize("kind", CASES)
def test_a_twin_starts_with_the_current_weights_and_buffers_of_its_member(kind):
    population = twins(kind)
    for slot in population.slots:
        population.germinate([0, 2], slot, "twin")
    for s in range(len(population.slots)):
        pairs = inherited(population, s)
        for name, (own, theirs) in pairs.items():
            assert torch.equal(own[[0, 2]], theirs[[0, 2]]), name
            assert own[1].count_nonzero() == 0 or not torch.equal(own[1], theirs[1]), name
        trained = [own for own, _ in pairs.values() if own.is_floating_point() and own.ndim > 1]
        assert not pairs or all(not torch.equal(own[0], own[2]) for own in trained[1:])
        assert (
            population.network.banks[s, 0]
            .named(population.network.banks[s, 0].flat_EP.detach())["scale.gamma"]
            .count_nonzero()
            == 0
        )


def test_what_is_fresh_is_the_first_layer_and_differs_between_members():
    population = twins("user")
    for slot in population.slots:
        population.germinate([0, 2], slot, "twin")
    gamma = {"scale.gamma"}
    strided = {"segment.conv1.weight", "segment.skip.weight"}
    before = {f"segment.1.{n}" for n in ("weight", "bias", "running_mean", "running_var")}
    found = [fresh_names(population, s) - gamma for s in range(4)]
    assert found == [strided, set(), before | {"segment.2.weight"}, {"segment.0.weight"}]
    bank = population.network.banks[0, 0]
    weight = bank.named(bank.flat_EP.detach())["segment.conv1.weight"]
    assert weight.shape[1:] == (4, 4, 3, 3)
    assert not torch.equal(weight[0], weight[2])
    assert 0.5 < weight[0].std() / (2 / (4 * 9)) ** 0.5 < 1.5, "He initialisation"


@pytest.mark.parametrize("kind", ["cnn", "mlp"])
def test_our_blocks_keep_their_norm_and_get_a_fresh_first_layer(kind):
    population = twins(kind)
    population.germinate([0], "r0c0", "twin")
    first = "segment.conv.weight" if kind == "cnn" else "segment.linear.weight"
    assert fresh_names(population, 0) == {"scale.gamma", first}
    population.germinate([0], "r0c1", "twin")
    equal = set() if kind == "mlp" else {first}  # mlp blocks have one width
    assert fresh_names(population, 1) == {"scale.gamma"} | equal


def test_moments_start_at_zero_even_where_another_seed_stood():
    population = twins("cnn")
    population.plant([0], "r0c0", "twin")
    population.train_batch(*data("cnn"))
    moments = population.trainer.seed_optimizer.state[0, 0]
    assert all(value[0].any() for value in moments.values())
    population.lifecycle.reset()
    population.plant([0], "r0c0", "twin")
    assert not any(value[0].any() for value in moments.values())


@pytest.mark.parametrize(("kind", "executor"), IN_TURN)
def test_gradients_reach_every_weight_after_the_first_step(kind, executor):
    population = twins(kind, executor, seed_lr=0.5, host_lr=0.5)
    for slot in population.slots:
        population.plant([0, 1, 2], slot, "twin")
    for reached in ("the scale alone", "all"):
        population.train_batch(*data(kind, seed=len(reached), size=24))
        for key, bank in population.network.banks.items():
            (momentum,) = population.trainer.seed_optimizer.state[key].values()
            moved = {n for n, m in bank.named(momentum).items() if m.flatten(1).any(dim=1).all()}
            assert moved == ({"scale.gamma"} if reached != "all" else set(bank.shapes))


@pytest.mark.parametrize("kind", CASES)
def test_both_executors_train_twins_alike(kind):
    losses = []
    for executor in EXECUTORS:
        population = twins(kind, executor)
        population.plant([0, 1], population.slots[0], "twin")
        population.germinate([1, 2], population.slots[1], "twin", BlendStyle.GATE)
        population.germinate([2], population.slots[2], "twin", BlendStyle.MULTIPLY)
        population.begin_step()
        for seed in range(4):
            stats = population.train_batch(*data(kind, seed=seed))
        losses.append([stats.loss_E, stats.shadow_loss_ES, population.forward(data(kind)[0])])
    assert torch.isfinite(losses[0][1]).sum() == 3
    for vmapped, looped in zip(*losses, strict=True):
        torch.testing.assert_close(vmapped, looped, rtol=2e-4, atol=2e-5, equal_nan=True)


def test_a_residual_twin_at_scale_one_is_the_segment_once_more():
    population = twins("transformer")
    population.plant([1], "r0c0", "twin")
    bank = population.network.banks[0, 0]
    bank.named(bank.flat_EP.detach())["scale.gamma"].fill_(1.0)
    host = population.member(1).host
    x = data("transformer")[0][1]
    h = host.steps[0](host.embedding(x))
    torch.testing.assert_close(population.member(1).seeds["r0c0"](h), host.steps[0](h))


def test_another_twin_at_scale_one_adds_the_segment():
    population = twins("mlp")
    population.plant([1], "r0c1", "twin")
    bank = population.network.banks[1, 0]
    bank.named(bank.flat_EP.detach())["scale.gamma"].fill_(1.0)
    block = population.member(1).host.blocks[1]
    h = torch.randn(4, 12)
    torch.testing.assert_close(population.member(1).seeds["r0c1"](h), h + block(h))


@pytest.mark.parametrize(("kind", "executor"), IN_TURN)
def test_a_loaded_population_continues_bit_for_bit(kind, executor, tmp_path):
    population = twins(kind, executor)
    population.plant([0], population.slots[0], "twin")
    population.germinate([1, 2], population.slots[1], "twin")
    population.begin_step()
    population.train_batch(*data(kind, seed=1))
    population.save(tmp_path / "saved")
    host = UsersHost if kind == "user" else KINDS[kind].host
    loaded = Population.load(tmp_path / "saved", host)
    for p in (population, loaded):
        p.germinate([0], p.slots[2], "twin")  # copies what was loaded
        p.begin_step()
        for seed in (2, 3):
            p.train_batch(*data(kind, seed=seed))
    for store, other in zip(
        (population.network.host, *population.network.banks.values()),
        (loaded.network.host, *loaded.network.banks.values()),
        strict=True,
    ):
        assert torch.equal(store.flat_EP, other.flat_EP)
        assert all(torch.equal(value, other.fixed[name]) for name, value in store.fixed.items())


@pytest.mark.parametrize("kind", CASES)
def test_a_member_with_twins_is_saved_exported_and_counted(kind, tmp_path):
    population = twins(kind)
    for slot in population.slots:
        population.plant([0, 1], slot, "twin")
    for seed in range(3):
        population.train_batch(*data(kind, seed=seed))
    x = data(kind)[0][1]
    member = population.member(1)
    out = member(x)
    torch.testing.assert_close(out, population.forward(data(kind)[0])[1], rtol=1e-4, atol=1e-5)
    member.save(tmp_path / "member")
    host = UsersHost if kind == "user" else KINDS[kind].host
    assert torch.equal(MorphogeneticModel.load(tmp_path / "member", host)(x), out)
    plain = member.to_plain()
    torch.testing.assert_close(plain(x), out, rtol=0, atol=1e-5)
    assert not plain.meta["untraced"]
    assert population.macs_E()[1] == macs_of(plain, x)
    trained = sum(p.numel() for p in member.parameters() if p.requires_grad)
    assert population.parameters_E()[1] == trained
    assert population.macs_E()[2] == macs_of(population.member(2).to_plain(), x)


def macs_of(module: nn.Module, x: Tensor) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(x[:1])
    return counter.get_total_flops() // 2


def test_germination_copies_without_a_call_per_member():
    calls = []
    for members in (4, 32):
        population = twins("user", members=members)
        population.germinate(list(range(members)), "r0c0", "twin")  # allocates the bank
        population.lifecycle.reset()
        calls.append(python_calls(lambda p=population: p.germinate(np.arange(p.members), 0, 0)))
    assert not differences(*calls)


def test_twins_do_not_change_what_other_seeds_draw():
    banks = []
    for blueprints in (("conv_light",), ("conv_light", "twin")):
        population = Population(KINDS["cnn"].host, ("r0c0",), blueprints, 2)
        torch.manual_seed(0)
        population.germinate([0, 1], "r0c0", "conv_light")
        banks.append(population.network.banks[0, 0].flat_EP)
    assert torch.equal(*banks)


def test_a_submodule_named_residual_declares_nothing():
    class Named(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Conv2d(4, 4, 1))
            self.residual = self[0]

    class Host(OwnHost):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(1, 4, 1))
            self.inner = Named()

        def segments(self) -> Sequence[nn.Module]:
            return (self.first, self.inner, self.second, self.head)

        def injection_specs(self) -> Sequence[InjectionSpec]:
            return [InjectionSpec("r0c0", 4, 1, "after_block")]

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.second(self.inner(self.first(x))))

    population = Population(Host, ["r0c0"], ["twin"], 2)
    assert population.network.bank(0, 0).template.residual is False


class InPlace(nn.Module):
    """A residual segment that starts in place, and so changes the input it is compared with."""

    residual = True

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x.clone() + self.conv(F.relu_(x))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_segment_that_works_in_place_is_copied_with_its_input(executor):
    class Host(OwnHost):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(1, 4, 1)
            self.inner = InPlace()

        def segments(self) -> Sequence[nn.Module]:
            return (self.first, self.inner, self.second, self.head)

        def injection_specs(self) -> Sequence[InjectionSpec]:
            return [InjectionSpec("r0c0", 4, 1, "after_block")]

    config = PopulationConfig(executor=executor)
    population = Population(Host, ["r0c0"], ["twin"], 2, config=config)
    population.plant([0, 1], "r0c0", "twin")
    bank = population.network.bank(0, 0)
    bank.named(bank.flat_EP.detach())["scale.gamma"].fill_(1.0)
    host = population.member(0).host
    h = host.inner(host.first(images()[0]))
    seed = population.member(0).seeds["r0c0"]
    torch.testing.assert_close(seed(h.clone()), host.inner(h.clone()))
    assert torch.isfinite(population.train_batch(images(), labels()).loss_E).all()


class Functional(nn.Module):
    """Pools in its forward, where nothing can be taken out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(self.conv(x), 2)


class Uncopied(OwnHost):
    """A host that starts with another module."""

    first_kind: Callable[[], nn.Module]

    def __init__(self) -> None:
        super().__init__()
        self.first = type(self).first_kind()


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (Functional, "cannot copy segment 0 (Functional) before the slot: it turns (2, 4, 4, 4) "
         "into (2, 4, 2, 2), even with strides of 1 and without pools"),
        (lambda: nn.Conv2d(1, 4, 3), "it turns (2, 4, 4, 4) into (2, 4, 2, 2)"),
        (lambda: nn.Conv2d(3, 6, 3, padding=1, groups=3), "a convolution of 3 groups cannot take"),
        (lambda: nn.Embedding(5, 4), "it fails on an activation (2, 4, 4, 4) (RuntimeError"),
        (nn.Identity, "copies a segment with parameters, and none comes before the slot"),
    ],
)  # fmt: skip
def test_a_segment_that_cannot_be_copied_is_refused_in_one_line(first, words):
    host = type("Uncopied", (Uncopied,), {"first_kind": staticmethod(first)})
    population = Population(host, ["r0c0", "r0c1"], ["norm", "twin"], 2)
    assert population.network.fits_SK.tolist() == [[True, False], [True, True]]
    line = refused(lambda: population.germinate([0], "r0c0", "twin"))
    assert line.startswith("blueprint 'twin' ")
    assert words in line
    assert line.endswith("slot r0c0 takes norm")


def test_a_twin_of_a_users_block_is_tried_before_a_run():
    class Detached(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.shape[-1] == 4 else super().forward(x)[:, :, 1:]

    host = type("Uncopied", (Uncopied,), {"first_kind": lambda: Detached(1, 4, 3, padding=1)})
    population = Population(host, ["r0c0"], ["twin"], 2)
    population.forward(images())
    assert "it must keep the shape" in refused(population.check_user_blueprints)
    assert not population.network.banks
    population.train_batch(images(), labels())


def test_a_twin_incubates_blends_and_becomes_permanent():
    kind = KINDS["batchnorm"]
    config = make_population().config
    population = Population(kind.host, kind.slots, ("twin",), 2, config=config)
    bring_to(population, SeedStage.TRAINING, [0], "r0c1", "twin")
    population.train_batch(*batch(2, kind="batchnorm"))
    statistics = population.network.banks[1, 0].fixed["segment.norm.running_mean"]
    assert not torch.equal(
        statistics[0], population.network.host.fixed["blocks.1.norm.running_mean"][0]
    )
    for _ in range(40):
        ready = population.lifecycle.legal_ops()[0, 1]
        if ready[LifecycleOp.FOSSILIZE]:
            population.fossilize([0], "r0c1")
            break
        if ready[LifecycleOp.ADVANCE]:
            population.advance([0], "r0c1")
        pass_step(population, train=True, kind="batchnorm")
    assert SeedStage(population.lifecycle.stage_ES[0, 1]) is SeedStage.FOSSILIZED
    assert population.parameters_E()[0] > population.parameters_E()[1]
