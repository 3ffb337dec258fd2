"""A host as a user writes one: torch's modules only. Tests break it in one place each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from esper.kasmina import Population, PopulationConfig
from esper.leyline import InjectionSpec
from support import refused

CHANNELS = (4, 8)
"""At the two slots. `LABELS` are below both."""
BATCH, LABELS = 6, 4
EXECUTORS = ("vmap", "loop")


class Block(nn.Module):
    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x))


class Head(nn.Module):
    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mean(dim=(-2, -1)))


class OwnHost(nn.Module):
    """Two convolutions and a head, on images `[B, 1, H, W]`."""

    topology = "cnn"
    widths: tuple[int, ...] = CHANNELS

    def __init__(self, outputs: int = LABELS, c_in: int = 1) -> None:
        super().__init__()
        self.first, self.second = Block(c_in, CHANNELS[0]), Block(*CHANNELS)
        self.head = Head(CHANNELS[1], outputs)

    def segments(self) -> Sequence[nn.Module]:
        return (self.first, self.second, self.head)

    def injection_specs(self) -> Sequence[InjectionSpec]:
        return [InjectionSpec(f"r0c{i}", c, i, "after_block") for i, c in enumerate(self.widths)]

    def forward(self, x: Tensor) -> Tensor:
        for segment in self.segments():
            x = segment(x)
        return x


class Then(nn.Module):
    """A module with something done to its output."""

    def __init__(self, inner: nn.Module, change: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.inner, self.change = inner, change

    def forward(self, x: Tensor) -> object:
        return self.change(self.inner(x))


def own_population(
    host: Callable[[], nn.Module] = OwnHost,
    executor: str = "vmap",
    slots: Sequence[str] = ("r0c0", "r0c1"),
    blueprints: Sequence[str] = ("norm",),
    members: int = 2,
    **settings: object,
) -> Population:
    config = PopulationConfig(executor=executor)  # type: ignore[arg-type]
    return Population(host, slots, blueprints, members, config=config, **settings)  # type: ignore[arg-type]


def images(*sample: int, members: int = 2, size: int = BATCH) -> Tensor:
    """Random inputs `[E, B, ...]`, of 8 x 8 pixels unless told."""
    shape = (members, size, *(sample or (1, 8, 8)))
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def labels(*places: int, members: int = 2, size: int = BATCH) -> Tensor:
    shape = (members, size, *places)
    return torch.randint(0, LABELS, shape, generator=torch.Generator().manual_seed(1))


def refused_before_training(
    population: Population, x: Tensor, y: Tensor, seed: str | None = "norm"
) -> str:
    """The line a first train batch is refused with; nothing has changed, MACs are unknown."""
    if seed is not None:
        population.germinate([0], population.slots[0], seed)
    population.begin_step()
    host = population.network.host
    before = [t.clone() for t in (host.flat_EP.detach(), *host.fixed.values())]
    line = refused(lambda: population.train_batch(x, y))
    after = (host.flat_EP.detach(), *host.fixed.values())
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert host.flat_EP.grad is None
    for member in range(population.members):
        assert population.member(member).host_macs is None
    return line
