"""Hosts and seeds with random layers of many kinds, for tests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina import LifecycleConfig, Population, PopulationConfig
from esper.kasmina.blueprints.registry import Blueprint, BlueprintRegistry
from esper.kasmina.layers.layers import LayerScale
from esper.kasmina.lifecycle.gates import GateConfig
from esper.leyline import InjectionSpec, SeedStage
from support import CLASSES, ROW_0, batch, bring_to


class Functional(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.4, self.training)


class StochasticDepth(nn.Module):
    """Leaves whole samples out, by `torch.rand`."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = torch.rand(len(x), *[1] * (x.ndim - 1), device=x.device) < 0.7
        return x + kept * torch.tanh(x)


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.3 * torch.randn_like(x) if self.training else x


class Mask(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * x.new_empty(len(x), *x.shape[1:]).bernoulli_(0.6) / 0.6


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Dropout(0.4),
    "in place": lambda: nn.Dropout(0.4, inplace=True),
    "dropout2d": lambda: nn.Dropout2d(0.4),
    "functional": Functional,
    "alpha": lambda: nn.AlphaDropout(0.4),
    "feature alpha": lambda: nn.FeatureAlphaDropout(0.4),
    "stochastic depth": StochasticDepth,
    "noise": Noise,
    "bernoulli_": Mask,
}


class RandomHost(nn.Module):
    """Random layers as segments of their own, inside others, twice in one."""

    topology = "cnn"

    def __init__(self, layer: Callable[[], nn.Module] = LAYERS["dropout"]) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.drop = layer()
        self.middle = nn.Sequential(nn.ReLU(), nn.Conv2d(4, 6, 3, padding=1), layer())
        self.last = nn.Sequential(
            layer(), nn.BatchNorm2d(6), nn.Tanh(), nn.Conv2d(6, 8, 1), layer()
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))

    def segments(self) -> Sequence[nn.Module]:
        return (self.first, self.drop, self.middle, self.last, self.head)

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        places = zip(ROW_0, (4, 6, 8), (0, 2, 3), strict=True)
        return tuple(InjectionSpec(s, c, position, "behind") for s, c, position in places)

    def forward(self, x: Tensor) -> Tensor:
        for segment in self.segments():
            x = segment(x)
        return x


def random_seed(layer: Callable[[], nn.Module]) -> Callable[[int], nn.Module]:
    """A blueprint with a random layer, of some width."""
    return lambda width: nn.Sequential(
        nn.Conv2d(width, width, 1), layer(), nn.Tanh(), LayerScale(width, space=2)
    )


@contextlib.contextmanager
def blueprints_of(**factories: Callable[[int], nn.Module]) -> Iterator[tuple[str, ...]]:
    """Blueprints for images, registered for a while."""
    for name, factory in factories.items():
        BlueprintRegistry.register(Blueprint(name, ("cnn",), 1, factory, "for a test"))
    try:
        yield tuple(factories)
    finally:
        for name in factories:
            BlueprintRegistry.unregister(name)


def random_population(
    members: int = 3,
    executor: str = "vmap",
    host: Callable[[], nn.Module] = RandomHost,
    blueprints: Sequence[str] = ("norm",),
    slots: Sequence[str] = ROW_0,
    device: str = "cpu",
    seed: int = 0,
) -> Population:
    gates = LifecycleConfig(gates=GateConfig(min_training_steps=1))
    config = PopulationConfig(executor=executor, lifecycle=gates)  # type: ignore[arg-type]
    return Population(host, slots, blueprints, members, seed, device, config)


def grow(population: Population, blueprint: str) -> None:
    """Seeds that blend, one that incubates behind and one before them."""
    bring_to(population, SeedStage.BLENDING, [0], "r0c1", blueprint, tempo=8)
    population.germinate([0], "r0c0", blueprint)
    population.germinate(list(range(population.members)), "r0c2", blueprint)
    population.begin_step()


def train(population: Population, batches: Sequence[int]) -> list[Tensor]:
    """Losses of main and shadow rows, batch by batch."""
    out = []
    for seed in batches:
        stats = population.train_batch(
            *batch(population.members, seed, device=str(population.device))
        )
        out += [stats.loss_E, stats.shadow_loss_ES]
    return out


def weights(population: Population) -> dict[str, Tensor]:
    """Copies of all weights and buffers."""
    network = population.network
    stores = {"host": network.host} | {str(key): bank for key, bank in network.banks.items()}
    out = {name: store.flat_EP.detach().clone() for name, store in stores.items()}
    for name, store in stores.items():
        out |= {f"{name}/{part}": value.clone() for part, value in store.fixed.items()}
    return out
