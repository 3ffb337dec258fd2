"""What tests of plain models need: seeds that tempt a fold, users' hosts, and the comparison."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, fx, nn

from esper.device.rng import forked_rng
from esper.kasmina import BlueprintRegistry, Population
from esper.kasmina.blueprints.registry import Blueprint
from esper.kasmina.layers.counting import count_macs, count_parameters
from esper.kasmina.layers.layers import Conv2d, LayerScale, Linear
from esper.leyline import BlendStyle, InjectionSpec
from support import batch, tiny_host

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
    "t_narrow": lambda w: scaled(Conv2d(w, w // 4, 1), Conv2d(w // 4, w, 1), width=w),
    "t_wide": lambda w: scaled(Conv2d(w, w, 1), Conv2d(w, w, 1), width=w),
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


@contextlib.contextmanager
def seeds_of_our_own() -> Iterator[None]:
    """All of the above, registered for a while."""
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
