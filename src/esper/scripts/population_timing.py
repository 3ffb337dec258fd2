"""How long a training batch of a population takes, under both executors in turn.

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
from esper.leyline.actions import ALPHA_TARGETS, LifecycleOp
from esper.leyline.signals import GateSignals
from esper.leyline.stages import SeedStage

EXECUTORS: Final[tuple[Literal["vmap", "loop"], ...]] = ("vmap", "loop")
SLOTS: Final = ("r0c0", "r0c1", "r0c2")
BLUEPRINT: Final = "conv_light"
STAGES: Final = (SeedStage.TRAINING, SeedStage.BLENDING, SeedStage.HOLDING)
"""A third of the slots stands in each."""
CLASSES: Final = 10


@dataclass(frozen=True, slots=True)
class HostCase:
    """A host and the images it sees."""

    name: str
    channels: int
    kernel_size: int
    image_shape: tuple[int, int, int]

    def build(self) -> CNNHost:
        """One host."""
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
    """The same, divided by the members."""
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
    """Synthetic images and labels, from a generator of their own."""
    generator = torch.Generator().manual_seed(0)
    x_EBCHW = torch.randn(members, batch_size, *case.image_shape, generator=generator)
    y_EB = torch.randint(CLASSES, (members, batch_size), generator=generator)
    return x_EBCHW.to(device), y_EB.to(device)


def _population(
    case: HostCase, members: int, device: torch.device, executor: Literal["vmap", "loop"]
) -> Population:
    config = PopulationConfig(executor=executor)
    population = Population(case.build, SLOTS, (BLUEPRINT,), members, device=device, config=config)
    spread_stages(population)
    return population


def spread_stages(population: Population) -> None:
    """Lead a seed in every slot through the lifecycle, until a third stands in each of `STAGES`."""
    life = population.lifecycle
    member_ES, slot_ES = np.indices(life.stage_ES.shape)
    third_ES = (member_ES + slot_ES) % len(STAGES)
    wanted_ES = np.array(STAGES)[third_ES]
    # A seed blended to less than full strength stays BLENDING.
    partly, fully = np.float32(min(ALPHA_TARGETS)), np.float32(max(ALPHA_TARGETS))
    target_ES = np.where(wanted_ES == SeedStage.BLENDING, partly, fully)
    population.germinate(
        member_ES.ravel(), slot_ES.ravel(), BLUEPRINT, alpha_target=target_ES.ravel()
    )
    ones_E = np.ones(life.members, dtype=np.float32)
    ones_ES = np.ones(life.stage_ES.shape, dtype=np.float32)
    healthy = GateSignals(ones_E, ones_ES, ones_ES, ones_ES, ones_ES)
    while (life.stage_ES != wanted_ES).any() or life.ramp_steps_left().any():
        population.begin_step()
        population.end_step(healthy)
        may_ES = life.legal_ops()[..., LifecycleOp.ADVANCE] & (wanted_ES != SeedStage.TRAINING)
        if may_ES.any():
            members, slots = np.nonzero(may_ES)
            population.advance(members, slots)


def _seconds(train: Callable[[Population], None], population: Population) -> float:
    """Time until the device has done it all."""
    _wait(population.device)
    began = perf_counter()
    train(population)
    _wait(population.device)
    return perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
