"""The settings of a population."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from esper.kasmina.lifecycle import LifecycleConfig
from esper.kasmina.optim_config import OptimConfig
from esper.leyline.compute import EXECUTOR_NAMES, ExecutorName
from esper.leyline.errors import unknown_name


@dataclass(frozen=True, slots=True)
class PopulationConfig:
    """How a population trains and grows."""

    executor: ExecutorName = "auto"
    """`vmap` computes all members at once, `loop` one after the other; the numbers agree. `auto`
    takes vmap unless the host cannot be vmapped."""
    host_lr: float = 0.05
    """Learning rate of hosts and of permanent seeds."""
    seed_lr: float = 0.05
    """Learning rate of seeds until they are permanent."""
    seed_lr_scaling: Literal["none", "weight_norm"] = "none"
    """`weight_norm`: times the root-mean-square weight of the seed over the host's."""
    detach_seed_input: bool = False
    """Whether a seed on trial keeps its gradient from the host below it (the identity path does
    not, ever)."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """The update rule, for hosts and seeds alike."""
    lifecycle: LifecycleConfig = field(default_factory=LifecycleConfig)
    """The rules of a seed's life."""

    def __post_init__(self) -> None:
        if self.executor not in EXECUTOR_NAMES:
            raise unknown_name("executor", self.executor, EXECUTOR_NAMES)
        if self.seed_lr_scaling not in ("none", "weight_norm"):
            raise unknown_name("seed_lr_scaling", self.seed_lr_scaling, ("none", "weight_norm"))
