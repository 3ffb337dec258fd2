"""Times a training batch of a population under both executors, interleaved.

Shape letters: E members, S slots, B batch, P pairs of timings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from esper.kasmina import CNNHost, Population, PopulationConfig
from esper.tolaria.runtime import synchronize_device
from esper.tolaria.stage_mix import all_slots_live, set_seed_stages

EXECUTORS: Final[tuple[Literal["vmap", "loop"], ...]] = ("vmap", "loop")
SLOTS: Final = ("r0c0", "r0c1", "r0c2")
BLUEPRINT: Final = "conv_light"
CLASSES: Final = 10


@dataclass(frozen=True, slots=True)
class HostCase:
    """A host and the shape of its images."""

    name: str
    channels: int
    kernel_size: int
    image_shape: tuple[int, int, int]

    def build(self) -> CNNHost:
        """Build a host."""
        return CNNHost(
            num_classes=CLASSES,
            in_channels=self.image_shape[0],
            base_channels=self.channels,
            kernel_size=self.kernel_size,
        )


DIGITS: Final = HostCase("2-4-8 channels, 1x1 kernels, 8x8x1 images", 2, 1, (1, 8, 8))
IMAGES: Final = HostCase("8-16-32 channels, 3x3 kernels, 32x32x3 images", 8, 3, (3, 32, 32))


@dataclass(frozen=True, slots=True)
class Timing:
    """One population under one executor."""

    host: str
    members: int
    batch_size: int
    executor: str
    batch_ms: float
    """Median time of a training batch."""
    member_ms: float
    """Time per member."""
    pairs: int


def time_population(
    case: HostCase, members: int, batch_size: int, device: torch.device, pairs: int, repeats: int
) -> list[Timing]:
    """Median batch times of both executors on the same population, in interleaved pairs."""
    x_EBCHW, y_EB = _batch(case, members, batch_size, device)
    populations = [_population(case, members, device, executor) for executor in EXECUTORS]

    def train(population: Population) -> None:
        for _ in range(repeats):
            population.train_batch(x_EBCHW, y_EB)

    for population in populations:
        train(population)  # warm-up: optimiser state, kernels
    seconds_PX = [[_seconds(train, population) for population in populations] for _ in range(pairs)]
    batch_ms_X = 1000 * np.median(seconds_PX, axis=0) / repeats
    return [
        Timing(case.name, members, batch_size, executor, float(ms), float(ms) / members, pairs)
        for executor, ms in zip(EXECUTORS, batch_ms_X, strict=True)
    ]


def _batch(
    case: HostCase, members: int, batch_size: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Random images and labels from a separate generator."""
    generator = torch.Generator().manual_seed(0)
    x_EBCHW = torch.randn(members, batch_size, *case.image_shape, generator=generator)
    y_EB = torch.randint(CLASSES, (members, batch_size), generator=generator)
    return x_EBCHW.to(device), y_EB.to(device)


def _population(
    case: HostCase, members: int, device: torch.device, executor: Literal["vmap", "loop"]
) -> Population:
    config = PopulationConfig(executor=executor)
    population = Population(case.build, SLOTS, (BLUEPRINT,), members, device=device, config=config)
    set_seed_stages(population, BLUEPRINT, all_slots_live(members, len(SLOTS)))
    return population


def _seconds(train: Callable[[Population], None], population: Population) -> float:
    """Time including synchronisation."""
    synchronize_device(population.device)
    began = perf_counter()
    train(population)
    synchronize_device(population.device)
    return perf_counter() - began
