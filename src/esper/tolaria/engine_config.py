"""What is an engine set to? How many members, on what, computed how, judged how."""

from __future__ import annotations

from dataclasses import dataclass, field

from esper.leyline.actions import ActionHead
from esper.leyline.compute import KERNEL_MODES, ComputeSettings
from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.limits import MAX_MEMBERS, require_at_most
from esper.leyline.seeds import require_seed
from esper.tamiyo.signals import SignalConfig
from esper.tolaria.counterfactual_eval import CounterfactualConfig
from esper.tolaria.governor import GovernorConfig


@dataclass(frozen=True, slots=True)
class EngineConfig(ComputeSettings):
    """How a population is run."""

    members: int = 8
    """E: networks that train side by side."""
    seed: int = 0
    """Every random draw of the run follows from it."""
    rollout_steps: int | None = None
    """Steps of a rollout; None: whole episodes. A shorter one is cut, and goes on in the next."""
    val_batch_size: int | None = None
    """Validation images computed at a time; only memory and speed depend on it. None: 512, on a GPU
    up to 2048 where members are few, because a pass that is not captured costs Python its time."""
    counterfactuals: CounterfactualConfig = field(default_factory=CounterfactualConfig)
    """How seeds are measured."""
    governor: GovernorConfig = field(default_factory=GovernorConfig)
    """When a member is set back."""
    signals: SignalConfig = field(default_factory=SignalConfig)
    """When a member counts as plateaued or stabilised."""
    frozen_heads: tuple[tuple[ActionHead, int], ...] = ()
    """Action heads that have one choice only: (head, index of the choice)."""

    def __post_init__(self) -> None:
        require_at_most("members=", self.members, MAX_MEMBERS)
        require_at_most("rollout_steps=", self.rollout_steps)
        require_at_most("val_batch_size=", self.val_batch_size)
        require_seed(self.seed, "EngineConfig.seed")
        if self.members < 1:
            raise EsperError(f"members={self.members}: a population needs at least 1 (--envs)")
        if self.rollout_steps is not None and self.rollout_steps < 1:
            raise EsperError(f"rollout_steps={self.rollout_steps}: must be 1 or more, or None")
        if self.kernels not in KERNEL_MODES:
            raise unknown_name("kernels", self.kernels, KERNEL_MODES)
