"""What many tests need: small populations, batches, and a seed brought to any stage legally."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from esper.kasmina import CNNHost, LifecycleConfig, OptimConfig, Population, PopulationConfig
from esper.kasmina.gates import GateConfig
from esper.leyline import LifecycleOp, SeedStage
from esper.leyline.signals import GateSignals

CNN_BLUEPRINTS = ("norm", "conv_light", "conv_heavy", "attention")
ROW_0 = ("r0c0", "r0c1", "r0c2")
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def tiny_host() -> CNNHost:
    return CNNHost(num_classes=5, in_channels=1, n_blocks=3, base_channels=4)


def make_population(
    members: int = 3,
    executor: str = "vmap",
    seed: int = 0,
    slots: tuple[str, ...] = ROW_0,
    device: str = "cpu",
    optim: OptimConfig | None = None,
    lifecycle: LifecycleConfig | None = None,
    **settings: object,
) -> Population:
    config = PopulationConfig(
        executor=executor,  # type: ignore[arg-type]
        optim=optim or OptimConfig(),
        lifecycle=lifecycle or LifecycleConfig(gates=GateConfig(min_training_steps=1)),
        **settings,  # type: ignore[arg-type]
    )
    return Population(tiny_host, slots, CNN_BLUEPRINTS, members, seed, device, config)


def batch(members: int, seed: int = 0, size: int = 6, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Inputs `[E, B, 1, 8, 8]` and targets `[E, B]`; member i's do not depend on E."""
    xs, ys = [], []
    for member in range(members):
        generator = torch.Generator().manual_seed(1000 * seed + member)
        xs.append(torch.randn(size, 1, 8, 8, generator=generator))
        ys.append(torch.randint(0, 5, (size,), generator=generator))
    return torch.stack(xs).to(device), torch.stack(ys).to(device)


def good_signals(population: Population) -> GateSignals:
    """Signals that open every gate."""
    shape = (population.members, len(population.slots))

    def full(value: float, *size: int) -> np.ndarray:
        return np.full(size, value, dtype=np.float32)

    return GateSignals(
        host_loss_E=full(1.0, shape[0]),
        shadow_loss_ES=full(0.9, *shape),
        grad_norm_ES=full(0.1, *shape),
        contribution_ES=full(0.2, *shape),
        contribution_se_ES=full(0.01, *shape),
    )


def pass_step(population: Population, train: bool = False, seed: int = 0) -> None:
    """One step of the clock, with or without a train batch."""
    population.begin_step()
    if train:
        population.train_batch(*batch(population.members, seed, device=str(population.device)))
    population.end_step(good_signals(population))


def bring_to(
    population: Population,
    stage: SeedStage,
    members: list[int],
    slot: str,
    blueprint: str = "conv_light",
    **choices: object,
) -> None:
    """Germinate a seed and lead it through the gates to `stage`."""
    population.germinate(members, slot, blueprint, **choices)  # type: ignore[arg-type]
    s = population.slots.index(slot)
    for _ in range(40):
        stages = population.lifecycle.stage_ES[members, s]
        if (stages == stage).all():
            return
        pass_step(population)
        legal = population.lifecycle.legal_ops()[members, s]
        stages = population.lifecycle.stage_ES[members, s]
        if (stages == stage).all():
            return
        if legal[:, LifecycleOp.FOSSILIZE].all():
            population.fossilize(members, slot)
        elif legal[:, LifecycleOp.ADVANCE].all():
            population.advance(members, slot)
    raise AssertionError(f"could not bring {slot} to {stage.name}: {stages}")


def poison(population: Population, slot: str, blueprint: str, member: int) -> None:
    """NaN into one member's seed."""
    key = (population.slots.index(slot), population.blueprints.index(blueprint))
    population.network.banks[key].flat_EP.detach()[member] = float("nan")
