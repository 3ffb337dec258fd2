"""Random legal programs: what a controller might do to a population, written down by a seed.

A program is run on two populations that differ in their executor alone. Five hosts: the three of
Esper's own, and two as users write them, with torch's modules and initial values:

- `residual`: BatchNorm, and skips inside segments that change width and resolution;
- `signal`: one dimension. A host's topology says the rank of its activations, and none has
  `[B, C, L]`; so signals travel as images of height 1, `[B, C, 1, L]`, as docs/own-host.md
  describes, each segment takes the height off and puts it back, and one of the blueprints is the
  user's own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from esper.kasmina import LifecycleConfig, OptimConfig, Population, PopulationConfig
from esper.kasmina.blueprints.registry import BlueprintRegistry, blueprint
from esper.kasmina.layers.layers import LayerScale
from esper.kasmina.lifecycle.gates import GateConfig
from esper.leyline import AlphaCurve, BlendStyle, GateSignals, InjectionSpec, LifecycleOp
from esper.leyline.actions import ALPHA_SPEEDS, ALPHA_TARGETS, TEMPOS
from support import CLASSES, KINDS, VOCAB, Batch, HostKind

OWN_BLUEPRINT: Final = "signal_wide"
SIX: Final = ("r0c0", "r1c0", "r0c1", "r1c1", "r0c2", "r1c2")

# ---- hosts of other styles ----------------------------------------------------------------------


class Chain(nn.Module):
    """A host that is its segments in a row, with a slot after each but the last."""

    topology = "cnn"

    def __init__(self, widths: Sequence[int], *segments: nn.Module) -> None:
        super().__init__()
        self.widths = tuple(widths)
        self.parts = nn.ModuleList(segments)

    def segments(self) -> Sequence[nn.Module]:
        return tuple(self.parts)

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        return tuple(
            InjectionSpec(f"r0c{at}", width, at, "after_segment")
            for at, width in enumerate(self.widths)
        )

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


class Residual(nn.Module):
    """Two convolutions with BatchNorm around a skip."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(c_in, c_out, 3, stride, padding=1, bias=False), nn.BatchNorm2d(c_out)
        )
        self.second = nn.Sequential(
            nn.Conv2d(c_out, c_out, 3, padding=1, bias=False), nn.BatchNorm2d(c_out, momentum=0.3)
        )
        same = c_in == c_out and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(c_in, c_out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.skip(x))


class Head(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mean(dim=(-2, -1)))


class Signal(nn.Module):
    """nn.Conv1d and nn.BatchNorm1d; the height of 1 is taken off and put back."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(c_in, c_out, 5, stride, padding=2, bias=False)
        self.norm = nn.BatchNorm1d(c_out)

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(self.norm(self.conv(x.squeeze(-2)))).unsqueeze(-2)


def residual_host() -> Chain:
    blocks = (Residual(1, 4, 1), Residual(4, 4, 1), Residual(4, 6, 2))
    return Chain((4, 4, 6), *blocks, Head(6))


def signal_host() -> Chain:
    blocks = (Signal(2, 4, 1), Signal(4, 6, 2), Signal(6, 6, 1))
    return Chain((4, 6, 6), *blocks, Head(6))


class SignalWide(nn.Module):
    """Nine neighbours along the signal, scaled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, (1, 9), padding=(0, 4))
        self.scale = LayerScale(width, space=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(torch.relu(self.conv(x)))


@contextmanager
def own_blueprint() -> Iterator[None]:
    """The user's blueprint is there, and gone afterwards."""
    blueprint(OWN_BLUEPRINT, topologies=("cnn",))(SignalWide)
    try:
        yield
    finally:
        BlueprintRegistry.unregister(OWN_BLUEPRINT)


ROW_0: Final = ("r0c0", "r0c1", "r0c2")
HOSTS: Final[dict[str, HostKind]] = {
    "cnn": HostKind(
        KINDS["cnn"].host, SIX, ("norm", "conv_light", "conv_heavy", "attention", "bottleneck"),
        "norm", (1, 8, 8),
    ),
    "transformer": KINDS["transformer"],
    "mlp": KINDS["mlp"],
    "residual": HostKind(
        residual_host, ROW_0, ("norm", "depthwise", "conv_small", "conv_heavy"), "norm", (1, 8, 8),
    ),
    "signal": HostKind(
        signal_host, ROW_0, (OWN_BLUEPRINT, "conv_light", "depthwise"), OWN_BLUEPRINT, (2, 1, 12),
    ),
}  # fmt: skip

# ---- programs -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Action:
    """A lifecycle operation on some members; `choices` are its keyword arguments."""

    op: LifecycleOp
    members: list[int]
    slot: str
    choices: dict[str, Any]

    def apply(self, population: Population) -> None:
        verb = {
            LifecycleOp.GERMINATE: population.germinate,
            LifecycleOp.ADVANCE: population.advance,
            LifecycleOp.SET_ALPHA_TARGET: population.set_alpha_target,
            LifecycleOp.PRUNE: population.prune,
            LifecycleOp.FOSSILIZE: population.fossilize,
        }[self.op]
        verb(self.members, self.slot, **self.choices)

    def __str__(self) -> str:
        given = "".join(f", {name}={value!r}" for name, value in self.choices.items())
        return f"{self.op.name.lower()}({self.members}, {self.slot!r}{given})"


@dataclass
class Program:
    """Settings and all random draws of one case; what is done is noted line by line."""

    seed: int
    host: str
    chance: random.Random
    members: int
    slots: tuple[str, ...]
    settings: dict[str, Any]
    lines: list[str] = field(default_factory=list)

    def population(self, executor: str) -> Population:
        config = PopulationConfig(executor=executor, **self.settings)  # type: ignore[arg-type]
        kind = HOSTS[self.host]
        return Population(
            kind.host, self.slots, kind.blueprints, self.members, self.seed, "cpu", config
        )

    def note(self, line: str) -> None:
        self.lines.append(line)

    def __str__(self) -> str:
        head = f"{self.host}, {self.members} members, slots {self.slots}, {self.settings}"
        return "\n".join([head, *self.lines])


def make_program(seed: int) -> Program:
    """Hosts take turns; everything else is drawn."""
    chance = random.Random(f"program {seed}")
    host = list(HOSTS)[seed % len(HOSTS)]
    slots = HOSTS[host].slots
    chosen = [slot for slot in slots if chance.random() < 0.8] or [slots[0]]
    return Program(
        seed, host, chance, chance.randrange(1, 6), tuple(chosen), random_settings(chance)
    )


def random_settings(chance: random.Random) -> dict[str, Any]:
    """AdamW has a large `eps`: it divides by the size of a gradient, and where that is nothing but
    rounding, so would be the step."""
    adam = chance.random() < 0.3
    rate = 1e-3 if adam else chance.choice((0.01, 0.05))
    return {
        "host_lr": rate,
        "seed_lr": rate * chance.choice((0.5, 1.0, 2.0)),
        "seed_lr_scaling": chance.choice(("none", "weight_norm")),
        "detach_seed_input": chance.random() < 0.3,
        "optim": OptimConfig(
            kind="adamw" if adam else "sgd",
            eps=1e-5,
            weight_decay=chance.choice((0.0, 0.01)),
            clip_norm=chance.choice((None, 0.5)),
            nesterov=not adam and chance.random() < 0.2,
        ),
        "lifecycle": LifecycleConfig(
            gates=GateConfig(min_training_steps=chance.choice((1, 2))),
            auto_forward_g1=chance.random() < 0.7,
            auto_forward_g2=chance.random() < 0.4,
            auto_forward_g3=chance.random() < 0.6,
            min_prune_age=chance.choice((0, 1)),
            embargoed_steps=1,
        ),
    }


def random_batch(program: Program, size: int) -> Batch:
    """Inputs and targets of each member, or now and then one batch for all."""
    generator = torch.Generator().manual_seed(program.chance.randrange(2**40))
    count = 1 if program.chance.random() < 0.2 else program.members
    shape = (count, size, *HOSTS[program.host].sample)
    if program.host == "transformer":
        return (
            torch.randint(0, VOCAB, shape, generator=generator),
            torch.randint(0, VOCAB, shape, generator=generator),
        )
    y = torch.randint(0, CLASSES, (count, size), generator=generator)
    return torch.randn(shape, generator=generator), y


def random_signals(program: Program) -> GateSignals:
    """Mostly such that gates open; both populations are told the same."""
    rng = np.random.default_rng(program.chance.randrange(2**40))
    shape = (program.members, len(program.slots))

    def values(low: float, high: float, *size: int) -> np.ndarray:
        return rng.uniform(low, high, size).astype(np.float32)

    return GateSignals(
        host_loss_E=values(1.0, 1.2, shape[0]),
        shadow_loss_ES=values(0.8, 1.6, *shape),
        grad_norm_ES=values(0.0, 0.5, *shape),
        contribution_ES=values(-0.1, 0.3, *shape),
        contribution_se_ES=values(0.0, 0.02, *shape),
    )


GROWTH: Final = {
    LifecycleOp.GERMINATE: 6, LifecycleOp.ADVANCE: 20, LifecycleOp.SET_ALPHA_TARGET: 2,
    LifecycleOp.PRUNE: 1, LifecycleOp.FOSSILIZE: 8,
}  # fmt: skip
"""How eagerly each operation is chosen where it is legal."""


def random_action(program: Program, population: Population) -> Action | None:
    """A legal operation on a slot of one member, or of all that may; None: nothing is legal."""
    chance, legal = program.chance, population.lifecycle.legal_ops()
    places = [(s, op) for s in range(len(program.slots)) for op in GROWTH if legal[:, s, op].any()]
    if not places:
        return None
    s, op = chance.choices(places, [GROWTH[op] for _, op in places])[0]
    able = [int(e) for e in np.flatnonzero(legal[:, s, op])]
    members = able if chance.random() < 0.4 else [chance.choice(able)]
    return Action(op, members, population.slots[s], random_choices(chance, op, population, s))


def random_choices(
    chance: random.Random, op: LifecycleOp, population: Population, slot: int
) -> dict[str, Any]:
    curve = {"curve": int(chance.choice(list(AlphaCurve)))}
    if op is LifecycleOp.GERMINATE:
        fitting = np.flatnonzero(population.lifecycle.fits_SK[slot])
        return curve | {
            "blueprint": population.blueprints[chance.choice(list(fitting))],
            "style": int(chance.choice(list(BlendStyle))),
            "tempo": int(chance.choice((TEMPOS[0], *TEMPOS))),
            "alpha_target": float(chance.choice((1.0, 1.0, *ALPHA_TARGETS))),
        }
    if op is LifecycleOp.SET_ALPHA_TARGET:
        target = float(chance.choice(ALPHA_TARGETS))
        return curve | {"target": target, "speed": int(chance.choice(ALPHA_SPEEDS))}
    if op is LifecycleOp.PRUNE:
        return curve | {"speed": int(chance.choice(ALPHA_SPEEDS))}
    return {}


def random_rows(program: Program, population: Population) -> tuple[np.ndarray, np.ndarray]:
    """Members in any order, each with its seeds as they are, off, or at another strength."""
    chance, alpha_ES = program.chance, population.lifecycle.alpha_ES
    rows = [chance.randrange(program.members) for _ in range(chance.randrange(1, 5))]
    alpha_RS = alpha_ES[rows].copy()
    for place in np.argwhere(alpha_RS > 0):
        alpha_RS[tuple(place)] *= chance.choice((0.0, 0.5, 1.0))
    return np.array(rows), alpha_RS
