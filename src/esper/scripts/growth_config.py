"""What a growth run on digits is asked to do: the config that is also the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal

from esper.leyline.actions import ALPHA_SPEEDS, TEMPOS
from esper.leyline.errors import EsperError
from esper.leyline.limits import require_at_most
from esper.leyline.seeds import require_training_seed

BLUEPRINTS: Final = ("norm", "conv_light", "conv_heavy", "attention")
"""Enabled in every population, whichever of them is grown."""


class Arm(StrEnum):
    """How a population of the same hosts is treated."""

    GROWN = "grown"
    """Seeds are grown while it trains."""
    ALONE = "alone"
    """Nothing is grown."""
    FULL = "full"
    """All seeds are there from the start and stay."""


ARM_LABELS: Final = {
    Arm.GROWN: "grown",
    Arm.ALONE: "left alone",
    Arm.FULL: "all seeds from the start",
}


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast a population learns, hosts and seeds alike."""

    lr: float
    """Learning rate of SGD with momentum 0.9."""
    schedule: Literal["constant", "cosine"]
    """Whether the rate stays or falls to 0 along half a cosine."""

    def at(self, step: int, steps: int) -> float:
        """The rate in step `step` of `steps`."""
        if self.schedule == "constant":
            return self.lr
        return self.lr * 0.5 * (1.0 + math.cos(math.pi * step / steps))


@dataclass(frozen=True, slots=True)
class GrowDigits:
    """Grow small networks on handwritten digits, beside the same networks left alone."""

    members: int = 8
    """Networks in each population."""
    steps: int = 40
    """Steps of training; after each one growth may act."""
    batches: int = 15
    """Training batches in a step (15 of 64 are about one pass over the 989 training images)."""
    batch_size: int = 64
    """Images in a batch, for each member its own."""
    blueprint: str = "conv_heavy"
    """What is grown."""
    slots: tuple[str, ...] = ("r0c0", "r0c1", "r0c2")
    """Where it is grown."""
    host_steps: int = 5
    """Steps the hosts train before seeds are germinated."""
    incubate_steps: int = 5
    """Steps a seed trains unseen before it may blend; the gate G2 decides from then on."""
    blend_steps: int = TEMPOS[0]
    """Steps in which a seed's strength goes from 0 to 1."""
    probation_steps: int = 5
    """Steps at full strength before a seed is judged by what it contributes."""
    prune_steps: int = ALPHA_SPEEDS[1]
    """Steps in which a rejected seed's strength goes back to 0."""
    grown: Rate = Rate(0.1, "cosine")
    """Learning rate of the grown population."""
    alone: Rate = Rate(0.1, "cosine")
    """Learning rate of the hosts left alone."""
    full: Rate = Rate(0.1, "cosine")
    """Learning rate of the population of `--static-full`."""
    static_full: bool = False
    """Also train the hosts with all seeds in place from the start."""
    seed: int = 0
    """Run seed: initial weights and batches come from it."""
    seeds: int = 1
    """Repeat for this many run seeds, from `--seed` on, and report the difference over them."""
    executor: Literal["vmap", "loop"] = "vmap"
    """Compute members all at once, or one after the other."""
    device: str = "cpu"
    """Where to compute, as torch names it."""
    out: Path = Path("out/grow_digits.png")
    """The picture; all numbers go beside it as JSON."""

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The populations of this run, in the order they are shown."""
        return tuple(Arm) if self.static_full else (Arm.GROWN, Arm.ALONE)

    @property
    def numbers_path(self) -> Path:
        """Where the numbers go."""
        return self.out.with_suffix(".json")

    def rate(self, arm: Arm) -> Rate:
        """The learning rate of one population."""
        return {Arm.GROWN: self.grown, Arm.ALONE: self.alone, Arm.FULL: self.full}[arm]

    def check(self) -> None:
        """Refuse what could only fail later, when time has been spent."""
        at_least_one = (
            "members", "batches", "batch_size", "host_steps", "incubate_steps", "probation_steps",
            "seeds",
        )  # fmt: skip
        for name in at_least_one:
            require_at_most(f"{_flag(name)} ", getattr(self, name))
            if getattr(self, name) < 1:
                raise EsperError(f"{_flag(name)} {getattr(self, name)}: must be 1 or more")
        for seed in (self.seed, self.seed + self.seeds - 1):
            require_training_seed(seed, "--seed")
        _require_choice("blend_steps", self.blend_steps, TEMPOS)
        _require_choice("prune_steps", self.prune_steps, ALPHA_SPEEDS)
        for arm in Arm:
            if not 0 < self.rate(arm).lr < math.inf:
                raise EsperError(f"--{arm}.lr {self.rate(arm).lr}: must be above 0")
        if not self.slots:
            raise EsperError("--slots is empty: name at least one, for example r0c0")
        if self.out.suffix != ".png":
            raise EsperError(f"--out {self.out}: must end in .png; the numbers go beside it")
        self._check_steps()

    def _check_steps(self) -> None:
        parts = {
            "alone": self.host_steps,
            "incubating": self.incubate_steps,
            "blending": self.blend_steps,
            "on probation": self.probation_steps,
            "to prune": self.prune_steps,
        }
        if self.steps < sum(parts.values()):
            listed = " + ".join(f"{count} {what}" for what, count in parts.items())
            raise EsperError(
                f"--steps {self.steps}: a seed's life needs {sum(parts.values())} ({listed})"
            )


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _require_choice(field: str, value: int, choices: tuple[int, ...]) -> None:
    if value not in choices:
        raise EsperError(f"{_flag(field)} {value}: choose from {', '.join(map(str, choices))}")
