"""Configuration of `VectorizedEngine`."""

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
    """Settings of `VectorizedEngine`."""

    members: int = 8
    """E: networks trained in parallel."""
    seed: int = 0
    """Seed of all random numbers of the run."""
    rollout_steps: int | None = None
    """Steps of a rollout; None: whole episodes. A truncated episode continues in the next one."""
    val_batch_size: int | None = None
    """Validation batch size; affects only memory and speed. None: 512, or up to 2048 on a GPU with
    few members, where Python overhead per batch dominates."""
    counterfactuals: CounterfactualConfig = field(default_factory=CounterfactualConfig)
    """Measurement of seed contributions."""
    governor: GovernorConfig | None = None
    """When members are rolled back; None: as suits the task's contexts (`default_governor`)."""
    signals: SignalConfig = field(default_factory=SignalConfig)
    """Thresholds for plateaued and stabilised members."""
    frozen_heads: tuple[tuple[ActionHead, int], ...] = ()
    """Action heads restricted to one choice, as (head, index)."""
    member_ids: tuple[int, ...] | None = None
    """Numbers of the members in the names of their random streams; members with the same number
    start with the same weights and see the same batches. None: their indices."""
    context_ids: tuple[int, ...] | None = None
    """Numbers of the members in the draws of their contexts; None: `member_ids`."""
    hidden_seed: int | None = None
    """Seed of what contexts hide from policies: noise, which classes form a group; None: `seed`."""

    def __post_init__(self) -> None:
        require_at_most("members=", self.members, MAX_MEMBERS)
        require_at_most("rollout_steps=", self.rollout_steps)
        require_at_most("val_batch_size=", self.val_batch_size)
        require_seed(self.seed, "EngineConfig.seed")
        if self.members < 1:
            raise EsperError(f"members={self.members}: a population needs at least 1 (--envs)")
        if self.rollout_steps is not None and self.rollout_steps < 1:
            raise EsperError(f"rollout_steps={self.rollout_steps}: must be 1 or more, or None")
        for name in ("member_ids", "context_ids"):
            ids = getattr(self, name)
            if ids is not None and (len(ids) != self.members or min(ids) < 0):
                raise EsperError(f"{name}={ids}: give one number, 0 or more, for each member")
        if self.kernels not in KERNEL_MODES:
            raise unknown_name("kernels", self.kernels, KERNEL_MODES)


def require_same_run(mine: dict[str, int | str], state: dict[str, int | str]) -> None:
    """Raise if task, members, seed or episode length differ."""
    if set(state) != set(mine):
        raise EsperError(f"engine state has {sorted(state)}, expected {sorted(mine)}")
    for name, value in mine.items():
        if name != "round" and state[name] != value:
            raise EsperError(
                f"engine state: {name} is {state[name]!r}, expected {value!r}; "
                f"resume with the same {name}"
            )
