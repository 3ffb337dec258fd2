"""What many tests need: small populations of every host kind, batches, and a seed at any stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina import (
    CNNHost,
    LifecycleConfig,
    MLPHost,
    OptimConfig,
    Population,
    PopulationConfig,
    ResNetHost,
    SignalHost,
    TransformerHost,
)
from esper.kasmina.lifecycle.gates import GateConfig
from esper.leyline import InjectionSpec, LifecycleOp, SeedStage
from esper.leyline.errors import EsperError
from esper.leyline.signals import GateSignals

CNN_BLUEPRINTS = ("norm", "conv_light", "conv_heavy", "attention")
ROW_0 = ("r0c0", "r0c1", "r0c2")
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
CLASSES = 5
VOCAB, BLOCK = 11, 6
Batch = tuple[Tensor, Tensor]


def tiny_host() -> CNNHost:
    return CNNHost(num_classes=CLASSES, in_channels=1, n_blocks=3, base_channels=4)


class BatchNormBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


class BatchNormHost(nn.Module):
    """A user's own host: torch's modules and initial values, batch norm with running statistics."""

    topology = "cnn"

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([BatchNormBlock(1, 4), BatchNormBlock(4, 6)])
        self.last = nn.Sequential(BatchNormBlock(6, 8), nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))

    def segments(self) -> Sequence[nn.Module]:
        return (*self.blocks, self.last, self.head)

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        return tuple(
            InjectionSpec(slot, channels, position, "after_block")
            for position, (slot, channels) in enumerate(zip(ROW_0, (4, 6, 8), strict=True))
        )

    def forward(self, x: Tensor) -> Tensor:
        for segment in self.segments():
            x = segment(x)
        return x


@dataclass(frozen=True)
class HostKind:
    """A small host, three of its slots, and the seeds tests grow there."""

    host: Callable[[], nn.Module]
    slots: tuple[str, str, str]
    blueprints: tuple[str, ...]
    seed: str
    """The blueprint to take where any will do."""
    sample: tuple[int, ...]
    """Shape of one input; token ids where it is a sequence."""


KINDS: dict[str, HostKind] = {
    "cnn": HostKind(tiny_host, ROW_0, CNN_BLUEPRINTS, "conv_light", (1, 8, 8)),
    "transformer": HostKind(
        lambda: TransformerHost(VOCAB, n_embd=16, n_head=2, n_layer=2, block_size=BLOCK),
        ("r0c0", "r1c0", "r0c1"),
        ("norm", "lora", "lora_large", "attention", "mlp_small", "mlp"),
        "attention",
        (BLOCK,),
    ),
    "mlp": HostKind(
        lambda: MLPHost(in_features=9, num_classes=CLASSES, width=12, n_layers=3),
        ROW_0,
        ("norm", "mlp_small", "mlp", "gate"),
        "mlp",
        (9,),
    ),
    "batchnorm": HostKind(
        BatchNormHost,
        ROW_0,
        ("norm", "depthwise", "bottleneck", "conv_small"),
        "depthwise",
        (1, 8, 8),
    ),
    "signal": HostKind(
        lambda: SignalHost(CLASSES, in_channels=2, n_blocks=3, base_channels=4),
        ROW_0,
        ("norm", "conv_light", "conv_dilated", "depthwise", "bottleneck", "attention"),
        "conv_light",
        (2, 11),
    ),
    "resnet": HostKind(
        lambda: ResNetHost(CLASSES, in_channels=1, base_channels=4),
        ROW_0,
        ("norm", "conv_light", "depthwise", "twin"),
        "twin",
        (1, 8, 8),
    ),
}

EVERY_KIND = [
    pytest.param(kind, marks=pytest.mark.slow) if kind == "resnet" else kind for kind in KINDS
]
"""For tests of every kind; residual hosts, which take longest, are among the slow ones."""

ONE_OF_EACH = [("vmap", "cnn"), ("loop", "transformer"), ("vmap", "mlp")]
"""Both executors and every sort of input, but not their product: that the executors agree has
tests of its own (`test_vmap_equals_loop_over_three_steps_with_mixed_topologies`)."""


def make_population(
    members: int = 3,
    executor: str = "vmap",
    seed: int = 0,
    slots: tuple[str, ...] | None = None,
    device: str = "cpu",
    optim: OptimConfig | None = None,
    lifecycle: LifecycleConfig | None = None,
    kind: str = "cnn",
    **settings: object,
) -> Population:
    """A population of small hosts of that kind; its three slots unless others are named."""
    config = PopulationConfig(
        executor=executor,  # type: ignore[arg-type]
        optim=optim or OptimConfig(),
        lifecycle=lifecycle or LifecycleConfig(gates=GateConfig(min_training_steps=1)),
        **settings,  # type: ignore[arg-type]
    )
    made = KINDS[kind]
    chosen = made.slots if slots is None else slots
    return Population(made.host, chosen, made.blueprints, members, seed, device, config)


def batch(
    members: int, seed: int = 0, size: int = 6, device: str = "cpu", kind: str = "cnn"
) -> Batch:
    """Inputs `[E, B, ...]` and targets `[E, B]` (or `[E, B, T]`), without any structure.

    Member i's do not depend on E.
    """
    xs, ys = [], []
    for member in range(members):
        generator = torch.Generator().manual_seed(1000 * seed + member)
        shape = (size, *KINDS[kind].sample)
        if kind == "transformer":
            xs.append(torch.randint(0, VOCAB, shape, generator=generator))
            ys.append(torch.randint(0, VOCAB, shape, generator=generator))
        else:
            xs.append(torch.randn(shape, generator=generator))
            ys.append(torch.randint(0, CLASSES, (size,), generator=generator))
    return torch.stack(xs).to(device), torch.stack(ys).to(device)


def learnable(kind: str, members: int, seed: int = 5) -> Callable[[int], Batch]:
    """Batches of any size with something to learn: noisy prototypes, or a noisy counting text."""
    generator = torch.Generator().manual_seed(seed)
    shape = KINDS[kind].sample
    prototypes = torch.randn(CLASSES, *shape, generator=generator)

    def classes(count: int) -> Batch:
        y = torch.randint(0, CLASSES, (members, count), generator=generator)
        return prototypes[y] + 0.8 * torch.randn(*y.shape, *shape, generator=generator), y

    def text(count: int) -> Batch:
        start = torch.randint(0, VOCAB, (members, count, 1), generator=generator)
        tokens = (start + 3 * torch.arange(BLOCK + 1)) % VOCAB
        noise = torch.rand(tokens.shape, generator=generator) < 0.1
        tokens = torch.where(noise, torch.zeros_like(tokens), tokens)
        return tokens[..., :-1], tokens[..., 1:]

    return text if kind == "transformer" else classes


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


def pass_step(
    population: Population, train: bool = False, seed: int = 0, kind: str = "cnn"
) -> None:
    """One step of the clock, with or without a train batch."""
    population.begin_step()
    if train:
        device = str(population.device)
        population.train_batch(*batch(population.members, seed, device=device, kind=kind))
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


def host_state(population: Population) -> dict[str, Tensor]:
    """Copies of the hosts' parameters and buffers."""
    host = population.network.host
    state = {"parameters": host.flat_EP.detach().clone()}
    return state | {name: value.clone() for name, value in host.fixed.items()}


def refused(action: Callable[[], object]) -> str:
    """The one line with which an action is refused."""
    with pytest.raises(EsperError) as error:
        action()
    line = str(error.value)
    assert line
    assert "\n" not in line
    return line
