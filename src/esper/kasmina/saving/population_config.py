"""Settings of a population."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from esper.kasmina.lifecycle.lifecycle import LifecycleConfig
from esper.leyline.compute import EXECUTOR_NAMES, ExecutorName
from esper.leyline.errors import unknown_name
from esper.leyline.optim import OptimConfig


@dataclass(frozen=True, slots=True)
class PopulationConfig:
    """Training and growth settings of a population."""

    executor: ExecutorName = "auto"
    """`vmap` computes all members at once, `loop` one after the other, `sharded` like loop with
    every network cut over the ranks of a torchrun job, all with the same results up to rounding.
    `auto` uses vmap unless the host cannot be vmapped."""
    host_lr: float = 0.05
    """Learning rate of hosts and of permanent seeds."""
    seed_lr: float = 0.05
    """Learning rate of seeds until they are permanent."""
    seed_lr_scaling: Literal["none", "weight_norm"] = "none"
    """`weight_norm`: multiply by the RMS weight of the seed relative to the host's."""
    detach_seed_input: bool = False
    """Whether to detach the input of seeds that are not permanent, so that their gradient does not
    reach the host (the identity path is never detached)."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """Optimiser settings of hosts and seeds."""
    lifecycle: LifecycleConfig = field(default_factory=LifecycleConfig)
    """Lifecycle rules of seeds."""

    def __post_init__(self) -> None:
        if self.executor not in EXECUTOR_NAMES:
            raise unknown_name("executor", self.executor, EXECUTOR_NAMES)
        if self.seed_lr_scaling not in ("none", "weight_norm"):
            raise unknown_name("seed_lr_scaling", self.seed_lr_scaling, ("none", "weight_norm"))
