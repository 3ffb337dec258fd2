"""A plain model is the member without Esper: same output, no cost above the member's, its own."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Sequence

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn

from esper.kasmina import BlueprintRegistry, Population
from esper.kasmina.blueprints.registry import Blueprint
from esper.kasmina.counting import count_macs, count_parameters
from esper.kasmina.layers import Conv2d, LayerScale, Linear
from esper.kasmina.rng import forked_rng
from esper.leyline import BlendStyle, InjectionSpec, LifecycleOp, SeedStage
from support import CNN_BLUEPRINTS, batch, bring_to, good_signals, make_population, tiny_host

SLOTS = ("r0c0", "r1c0", "r0c1", "r0c2")
WIDTH, AREA = 8, 16
"""Of slot r0c1 on 8x8 images."""
TOLERANCE = 1e-5


# ---- seeds of our own: linear ones, and ones a careless fold would break ----------------------


def chain(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers)


class Square(nn.Module):
    """d * d: a factor may not be folded into d."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        d = self.conv(x)
        return d * d


class Twice(nn.Module):
    """One convolution used twice: a factor may not be folded into it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = Conv2d(width, width, 1)
        self.scale = LayerScale(width, space=2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.scale(self.conv(self.conv(x)))
        return out


class TwoWays(nn.Module):
    """d is used scaled and as it is: a factor may not be folded into it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        d = self.conv(x)
        return 0.5 * d + torch.tanh(d)


class Tied(nn.Module):
    """Two convolutions with one weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = Conv2d(width, width, 1)
        self.last = Conv2d(width, width, 1)
        self.last.weight = self.first.weight
        self.scale = LayerScale(width, space=2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.scale(self.last(torch.relu(self.first(x))))
        return out


class Residual(nn.Module):
    """A linear seed with a residual path inside, and a factor written in Python."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return 0.1 * (x + 0.5 * self.conv(x))


def scaled(*layers: nn.Module, width: int) -> nn.Sequential:
    return chain(*layers, LayerScale(width, space=2))


CNN_SEEDS = {
    "t_line": lambda w: scaled(Conv2d(w, w, 1), width=w),
    "t_line_bias": lambda w: scaled(Conv2d(w, w, 1, bias=True), width=w),
    "t_line_3x3": lambda w: scaled(Conv2d(w, w, 3), width=w),
    "t_depthwise": lambda w: scaled(Conv2d(w, w, 3, groups=w), width=w),
    "t_grouped": lambda w: scaled(Conv2d(w, w, 3, groups=2), width=w),
    "t_narrow": lambda w: scaled(Conv2d(w, w // 4, 1), Conv2d(w // 4, w, 1), width=w),
    "t_wide": lambda w: scaled(Conv2d(w, w, 1), Conv2d(w, w, 1), width=w),
    "t_three_one": lambda w: scaled(Conv2d(w, w, 3), Conv2d(w, w, 1), width=w),
    "t_one_three": lambda w: scaled(Conv2d(w, w, 1), Conv2d(w, w, 3), width=w),
    "t_bias_three": lambda w: scaled(Conv2d(w, w, 1, bias=True), Conv2d(w, w, 3), width=w),
    "t_three_three": lambda w: scaled(Conv2d(w, w, 3), Conv2d(w, w, 3), width=w),
    "t_two_scales": lambda w: scaled(nn.GELU(), LayerScale(w, space=2), width=w),
    "t_dropout": lambda w: scaled(Conv2d(w, w, 1), nn.Dropout(0.5), width=w),
    "t_square": Square,
    "t_twice": Twice,
    "t_two_ways": TwoWays,
    "t_tied": Tied,
    "t_residual": Residual,
}
RANKS = (1, 3, 4, 6)
MLP_SEEDS = {
    f"t_lora{rank}": lambda w, rank=rank: chain(
        Linear(w, rank, bias=False), Linear(rank, w, bias=False), LayerScale(w)
    )
    for rank in RANKS
}


@pytest.fixture(autouse=True, scope="module")
def _seeds_of_our_own() -> Iterator[None]:
    for topology, seeds in (("cnn", CNN_SEEDS), ("mlp", MLP_SEEDS)):
        for name, factory in seeds.items():
            BlueprintRegistry.register(Blueprint(name, (topology,), 1, factory, "for a test"))
    yield
    for name in (*CNN_SEEDS, *MLP_SEEDS):
        BlueprintRegistry.unregister(name)


# ---- hosts of a user's -------------------------------------------------------------------------


class UserHost(nn.Module):
    """A chain of named segments with a slot behind some of them."""

    topology = "mlp"

    def __init__(self, width: int, slots: Sequence[int], **segments: nn.Module) -> None:
        super().__init__()
        self.width, self.slots = width, slots
        for name, segment in segments.items():
            self.add_module(name, segment)
        self.names = tuple(segments)

    def segments(self) -> tuple[nn.Module, ...]:
        return tuple(self.get_submodule(name) for name in self.names)

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        return tuple(
            InjectionSpec(f"r0c{col}", self.width, position, "after")
            for col, position in enumerate(self.slots)
        )

    def forward(self, x: Tensor) -> Tensor:
        for segment in self.segments():
            x = segment(x)
        return x


class UserCNN(UserHost):
    topology = "cnn"


def vector_host() -> UserHost:
    return UserHost(WIDTH, (0,), body=chain(nn.Linear(6, WIDTH), nn.GELU()), head=nn.Linear(8, 3))


# ---- helpers -----------------------------------------------------------------------------------


def grown(*seeds: tuple[str, str, BlendStyle, float], members: int = 1) -> Population:
    """Members of the tiny host with seeds (slot, blueprint, style, alpha), parameters stirred."""
    return planted(tiny_host, SLOTS, *seeds, members=members)


def planted(
    host: object,
    slots: Sequence[str],
    *seeds: tuple[str, str, BlendStyle, float],
    members: int = 1,
) -> Population:
    names = sorted({name for _, name, _, _ in seeds})
    population = Population(host, slots, names, members)  # type: ignore[arg-type]
    everyone = list(range(members))
    for slot, name, style, alpha in seeds:
        population.plant(everyone, slot, name, style)
        population.lifecycle.alpha_ES[:, population.slots.index(slot)] = alpha
    stir(population)
    return population


def stir(population: Population) -> None:
    """Move every parameter, so that channels differ and no constant hides a wrong axis."""
    network = population.network
    with forked_rng(5), torch.no_grad():
        for store in (network.host, *network.banks.values(), *network.gates.values()):
            store.flat_EP.add_(0.2 * torch.randn(store.flat_EP.shape))


def images(size: int = 4) -> Tensor:
    return batch(1, seed=3, size=size)[0][0]


def assert_same_output(population: Population, member: int, x: Tensor) -> fx.GraphModule:
    model = population.member(member)
    plain = model.to_plain()
    with torch.no_grad():
        expected = model.eval()(x)
        assert (plain(x) - expected).abs().max() <= TOLERANCE
        row = population.forward(x[None], [member])[0]
        assert (plain(x) - row).abs().max() <= TOLERANCE
    assert count_parameters(plain) <= population.parameters_E()[member]
    assert count_macs(plain, x) <= population.macs_E()[member]
    return plain


def called(plain: fx.GraphModule, function: object) -> int:
    return sum(node.target is function for node in plain.graph.nodes)


def classes_of(plain: nn.Module) -> set[str]:
    """Where the classes come from: `torch`, `esper`, a test module."""
    return {type(module).__module__.split(".")[0] for module in plain.modules()}


# ---- the same output ---------------------------------------------------------------------------


def test_every_stage_has_the_members_output():
    """Two seeds live through all of it, one to its removal, one to permanence."""
    population = make_population(members=2, slots=SLOTS)
    seen = set()
    ramping = 0

    def check() -> None:
        nonlocal ramping
        for member, alpha in enumerate(population.lifecycle.alpha_ES[:, 2]):
            seen.add(SeedStage(population.lifecycle.stage_ES[member, 2]))
            ramping += 0 < alpha < 1
            plain = assert_same_output(population, member, images())
            assert any(n.startswith("seeds.") for n in plain.state_dict()) == (alpha > 0)

    def until(*stages: SeedStage) -> None:
        for _ in range(30):
            check()
            if (population.lifecycle.stage_ES[:, 2] == stages).all():
                return
            population.begin_step()
            check()
            population.end_step(good_signals(population))
            check()
            if population.lifecycle.legal_ops()[:, 2, LifecycleOp.ADVANCE].all():
                population.advance([0, 1], "r0c1")
        raise AssertionError(f"not {stages} in 30 steps")

    check()
    population.germinate([0, 1], "r0c1", "conv_light", tempo=3)
    stir(population)
    until(SeedStage.HOLDING, SeedStage.HOLDING)
    population.fossilize([1], "r0c1")
    population.prune([0], "r0c1", speed=3)
    until(SeedStage.DORMANT, SeedStage.FOSSILIZED)
    assert seen == set(SeedStage)
    assert ramping >= 4


SEEDS = (*CNN_BLUEPRINTS, *CNN_SEEDS)
ALPHAS = st.one_of(st.just(0.0), st.just(1.0), st.floats(0.0078125, 1.0, width=32))
SLOT = st.none() | st.tuples(st.sampled_from(SEEDS), st.sampled_from(list(BlendStyle)), ALPHAS)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.tuples(*[SLOT] * len(SLOTS)))
def test_any_topology_has_the_members_output(choices):
    seeds = [(slot, *seed) for slot, seed in zip(SLOTS, choices, strict=True) if seed]
    plain = assert_same_output(grown(*seeds), 0, images())
    assert classes_of(plain) == {"torch"}
    assert plain.meta["untraced"] == ()


@pytest.mark.parametrize("style", list(BlendStyle))
@pytest.mark.parametrize("name", [*BlueprintRegistry.names("cnn"), *CNN_SEEDS])
def test_every_blueprint_becomes_torch_modules(name, style):
    plain = assert_same_output(grown(("r0c1", name, style, 0.37)), 0, images())
    assert classes_of(plain) == {"torch"}
    assert plain.meta["untraced"] == ()


# ---- no more than needed -----------------------------------------------------------------------


def test_without_live_seeds_the_plain_model_is_the_host():
    population = make_population(members=1)
    bring_to(population, SeedStage.TRAINING, [0], "r0c1", "conv_light")
    plain = assert_same_output(population, 0, images())
    assert plain.state_dict().keys() == tiny_host().state_dict().keys()
    assert count_parameters(plain) == population.parameters_E()[0]


@pytest.mark.parametrize("alpha", [0.3, 1.0])
@pytest.mark.parametrize("style", [BlendStyle.ADD, BlendStyle.GATE])
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("conv_light", 9 * WIDTH**2 + 2 * WIDTH), ("norm", 2 * WIDTH), ("attention", 2 * 18 + 14)],
)
def test_scales_and_alphas_are_folded_into_the_layer_before(name, style, alpha, parameters):
    """conv_light and norm lose their scale; attention keeps it (8 -> 2 -> 8), alpha inside."""
    population = grown(("r0c1", name, style, alpha))
    plain = assert_same_output(population, 0, images())
    gate = 2 * WIDTH if style is BlendStyle.GATE else 0
    host = count_parameters(tiny_host())
    assert count_parameters(plain) == host + parameters + gate
    attention = 2 if name == "attention" else 0
    assert called(plain, operator.mul) == attention + (2 if gate else 0)
    constants = [a for n in plain.graph.nodes for a in n.args if isinstance(a, float)]
    assert constants == []


def test_multiply_keeps_its_alpha_behind_the_tanh():
    plain = assert_same_output(grown(("r0c1", "norm", BlendStyle.MULTIPLY, 0.5)), 0, images())
    assert [a for n in plain.graph.nodes for a in n.args if isinstance(a, float)] == [0.5]


def test_identities_are_gone():
    host = UserCNN(
        4, (0,), body=chain(nn.Conv2d(1, 4, 1), nn.Identity()), idle=nn.Identity(),
        head=chain(nn.Dropout(0.0), nn.Flatten(), nn.Linear(256, 3)),
    )  # fmt: skip
    population = planted(
        lambda: copy.deepcopy(host), ["r0c0"], ("r0c0", "t_line", BlendStyle.ADD, 1)
    )
    plain = assert_same_output(population, 0, images())
    found = {type(module) for module in plain.modules()}
    assert not found & {nn.Identity, nn.Dropout}


@pytest.mark.parametrize(
    ("name", "unmerged", "merged"),
    [
        ("t_line", WIDTH**2, WIDTH**2),
        ("t_line_3x3", 9 * WIDTH**2, 9 * WIDTH**2),
        ("t_depthwise", 9 * WIDTH, 9 * WIDTH),
        ("t_grouped", 9 * WIDTH**2 // 2, 9 * WIDTH**2 // 2),
        ("t_wide", 2 * WIDTH**2, WIDTH**2),
        ("t_three_one", 10 * WIDTH**2, 9 * WIDTH**2),
        ("t_one_three", 10 * WIDTH**2, 9 * WIDTH**2),
    ],
)
def test_linear_seed_becomes_one_layer_with_the_host_path_in_it(name, unmerged, merged):
    population = grown(("r0c1", name, BlendStyle.ADD, 0.6))
    plain = assert_same_output(population, 0, images())
    host = tiny_host()
    assert called(plain, operator.add) == 0
    assert count_parameters(plain) == count_parameters(host) + merged
    assert population.parameters_E()[0] == count_parameters(host) + unmerged + WIDTH
    assert count_macs(plain, images()) == count_macs(host, images()) + merged * AREA


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("t_narrow", 2 * WIDTH * WIDTH // 4),  # one layer would cost 64 instead of 32
        ("t_bias_three", 10 * WIDTH**2 + WIDTH),  # the border pads a bias away
        ("t_three_three", 18 * WIDTH**2),  # the border pads the activation between
    ],
)
def test_linear_seed_stays_apart_where_merging_costs_or_changes(name, parameters):
    plain = assert_same_output(grown(("r0c1", name, BlendStyle.ADD, 0.6)), 0, images())
    assert called(plain, operator.add) == 1
    assert count_parameters(plain) == count_parameters(tiny_host()) + parameters


@pytest.mark.parametrize("style", [BlendStyle.MULTIPLY, BlendStyle.GATE])
def test_linear_seed_stays_apart_where_the_blend_is_not_linear(style):
    plain = assert_same_output(grown(("r0c1", "t_line", style, 0.6)), 0, images())
    assert called(plain, operator.add) >= 1


@pytest.mark.parametrize("rank", RANKS)
def test_low_rank_seed_is_merged_only_from_half_the_width_on(rank):
    population = planted(vector_host, ["r0c0"], ("r0c0", f"t_lora{rank}", BlendStyle.ADD, 0.7))
    x = torch.randn(5, 6)
    plain = assert_same_output(population, 0, x)
    host = vector_host()
    weights = WIDTH**2 if rank >= WIDTH // 2 else 2 * rank * WIDTH
    assert called(plain, operator.add) == (0 if rank >= WIDTH // 2 else 1)
    assert count_parameters(plain) == count_parameters(host) + weights
    assert count_macs(plain, x) == count_macs(host, x) + weights


# ---- its own -----------------------------------------------------------------------------------


def mixed() -> Population:
    return grown(
        ("r0c0", "attention", BlendStyle.GATE, 1.0),
        ("r1c0", "t_line", BlendStyle.ADD, 0.5),
        ("r0c1", "conv_heavy", BlendStyle.MULTIPLY, 0.3),
        ("r0c2", "conv_light", BlendStyle.ADD, 0.8),
        members=2,
    )


def test_plain_model_trains_and_every_parameter_does_something():
    plain = mixed().member(0).to_plain().train()
    x, y = (value[0] for value in batch(1, size=16))
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.05)
    losses = []
    for _ in range(20):
        optimiser.zero_grad()
        loss = F.cross_entropy(plain(x), y)
        loss.backward()
        assert all(p.grad is not None and p.grad.any() for p in plain.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_plain_model_and_population_train_apart():
    population = mixed()
    stores = (population.network.host, *population.network.banks.values())
    values = [store.flat_EP.detach().clone() for store in stores]
    plain = population.member(1).to_plain()
    x, y = (value[0] for value in batch(1))
    F.cross_entropy(plain(x), y).backward()
    torch.optim.SGD(plain.parameters(), lr=0.5).step()
    assert all(torch.equal(s.flat_EP, v) for s, v in zip(stores, values, strict=True))
    kept = {name: value.clone() for name, value in plain.state_dict().items()}
    population.train_batch(*batch(2))
    assert all(torch.equal(value, kept[name]) for name, value in plain.state_dict().items())


def test_taking_it_leaves_member_and_generators_alone():
    population = mixed()
    model = population.member(0).train()
    before, state = model(images()), torch.get_rng_state()
    plain = model.to_plain()
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert not plain.training
    assert torch.equal(model(images()), before)


# ---- a user's own host -------------------------------------------------------------------------


def test_batch_norm_statistics_come_along_and_are_its_own():
    def host() -> UserCNN:
        body = chain(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        return UserCNN(4, (0,), body=body, head=chain(nn.Flatten(), nn.Linear(256, 5)))

    population = planted(host, ["r0c0"], ("r0c0", "norm", BlendStyle.ADD, 0.5), members=3)
    for seed in range(3):
        population.train_batch(*batch(3, seed))
    plain = assert_same_output(population, 2, images())
    mean = plain.get_buffer("body.1.running_mean")
    assert torch.equal(mean, population.network.host.fixed["body.1.running_mean"][2])
    assert mean.untyped_storage().nbytes() == 4 * mean.element_size(), "not all members' rows"
    kept = population.network.host.fixed["body.1.running_mean"].clone()
    plain.train()(images())
    assert not torch.equal(plain.get_buffer("body.1.running_mean"), kept[2])
    assert torch.equal(population.network.host.fixed["body.1.running_mean"], kept)


class Weighted(nn.Module):
    """A linear map times a fixed vector."""

    def __init__(self, vector: Tensor) -> None:
        super().__init__()
        self.linear = Linear(WIDTH, WIDTH)
        self.register_buffer("vector", vector)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) * self.vector
        return out


def test_buffer_of_two_parts_stays_one():
    def host() -> UserHost:
        vector = torch.linspace(0.5, 1.5, WIDTH)
        return UserHost(WIDTH, (0,), one=Weighted(vector), two=Weighted(vector))

    population = planted(host, ["r0c0"], ("r0c0", "t_lora1", BlendStyle.ADD, 0.5), members=2)
    plain = assert_same_output(population, 1, torch.randn(4, WIDTH))
    assert [name for name, _ in plain.named_buffers()] == ["one.vector"]


class Embed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(7, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        out: Tensor = self.tokens(ids) + 0.1 * places[:, None]
        return out


class Attend(nn.Module):
    """Splits in a loop, builds its mask from the length: what attention code does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = Linear(WIDTH, 3 * WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, -1)) for part in self.qkv(self.norm(x)).chunk(3, dim=-1))
        q, k, v = (part.transpose(-3, -2) for part in (q, k, v))
        later = torch.full((x.shape[-2], x.shape[-2]), float("-inf"), device=x.device).triu(1)
        mixed = (q @ k.transpose(-2, -1) + later).softmax(dim=-1) @ v
        return x + mixed.transpose(-3, -2).flatten(-2)


class TiedHead(nn.Module):
    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, 7, bias=False)
        self.out.weight = table.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(x)
        return out


def gpt() -> UserHost:
    embed = Embed()
    return UserHost(WIDTH, (1,), embed=embed, attend=Attend(), head=TiedHead(embed.tokens))


def test_tied_weight_stays_tied():
    population = planted(gpt, ["r0c0"], ("r0c0", "t_lora1", BlendStyle.GATE, 0.5))
    ids = torch.randint(0, 7, (3, 5))
    plain = assert_same_output(population, 0, ids)
    assert plain.get_parameter("head.out.weight") is plain.get_parameter("embed.tokens.weight")
    assert classes_of(plain) == {"torch"}
    plain(ids).square().mean().backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    assert plain.get_parameter("head.out.weight") is plain.get_parameter("embed.tokens.weight")


class Undecided(nn.Module):
    """Python that depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.linear = Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.linear(x) * self.gain
        return -h if float(x.detach().sum()) > 1e9 else h + self.gain


class Gain(nn.Module):
    """Uses a parameter of another part."""

    def __init__(self, gain: nn.Parameter) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain


def undecided_host() -> UserHost:
    undecided = Undecided()
    body = chain(nn.Linear(6, WIDTH), undecided, nn.GELU())
    return UserHost(WIDTH, (0, 1), body=body, more=Gain(undecided.gain), head=Linear(WIDTH, 3))


def test_part_that_cannot_be_traced_stays_whole_and_is_named(caplog):
    seed = ("r0c1", "t_lora4", BlendStyle.ADD, 0.5)
    model = planted(undecided_host, ["r0c0", "r0c1"], seed).member(0)
    x = torch.randn(4, 6)
    plain = model.to_plain()
    assert (plain(x) - model.eval()(x)).abs().max() <= TOLERANCE
    assert plain.meta["untraced"] == ("body.1",)
    assert "body.1" in caplog.text
    whole = plain.get_submodule("body.1")
    assert type(whole) is Undecided
    assert type(whole.linear) is nn.Linear, "inside it, our layers are torch's too"
    assert all(p.requires_grad for p in plain.parameters())
    plain(x).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in plain.parameters())


def test_segments_made_on_the_fly_or_used_twice_are_followed():
    class Loose(UserHost):
        def segments(self) -> tuple[nn.Module, ...]:
            first, again, head = super().segments()
            return chain(first, nn.GELU()), again, again, head

    def host() -> UserHost:
        parts = {"first": nn.Linear(6, WIDTH), "again": Linear(WIDTH, WIDTH), "head": Linear(8, 3)}
        return Loose(WIDTH, (1,), **parts)

    population = planted(host, ["r0c0"], ("r0c0", "t_lora1", BlendStyle.ADD, 0.5))
    plain = assert_same_output(population, 0, torch.randn(4, 6))
    names = [name for name, _ in plain.named_parameters()]
    assert names[:3] == ["segment0.0.weight", "segment0.0.bias", "again.weight"]


def test_a_hosts_own_name_for_its_seeds_is_respected():
    def host() -> UserHost:
        return UserHost(WIDTH, (0,), seeds=nn.Linear(6, WIDTH), head=Linear(WIDTH, 3))

    population = planted(host, ["r0c0"], ("r0c0", "t_lora1", BlendStyle.ADD, 0.5))
    plain = assert_same_output(population, 0, torch.randn(4, 6))
    assert "seeds.weight" in plain.state_dict()
    assert "seeds_.r0c0.delta.0.weight" in plain.state_dict()
