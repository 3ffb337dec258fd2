"""Configuration of the policy network. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from esper.leyline.actions import LifecycleOp, op_choices
from esper.leyline.codec import LATER
from esper.leyline.errors import EsperError
from esper.leyline.limits import MAX_NETWORK_WIDTH, require_at_most

MAX_ABS_PRIOR: Final = 1e6
"""Largest absolute value in `op_prior`; beyond it float32 may overflow."""

GROWING_PRIOR: Final = (1.0, -1.0, 2.0, -2.0, -3.0, 0.0, 1.0, -5.0, -3.0, -2.0)
"""Initial op logits that favour waiting and advancing over pruning. With a uniform prior nearly
every seed is pruned within a few steps, long before it pays off, and the policy first learns to
prune. It germinates at about one step in ten: with more, all slots fill early whatever it learns;
with less, most seeds come too late to pay off (docs/ppo.md). In the plan phase every second slot is
planted, as under a random plan; few members stop, or close a slot, before it is learnt. Where they
may restart, about every second one does in an episode of 24 steps."""


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Sizes and initial bias of the policy network."""

    width: int = 64
    """Width of tokens, of the recurrent core and of the hidden layer of each head."""
    attention_heads: int = 2
    """Attention heads over the slots; must divide the width."""
    embedding: int = 16
    """Size of a candidate's key, which the blueprint head points at."""
    core: Literal["lstm", "memoryless"] = "lstm"
    """Recurrent core; `memoryless` is the feed-forward ablation."""
    op_prior: tuple[float, ...] = GROWING_PRIOR
    """Initial logit bias of each `LifecycleOp`; RESTART may be left out, it is 0 then. Under a
    uniform initial policy no seed survives long enough to show a contribution."""

    def __post_init__(self) -> None:
        require_at_most("NetworkConfig.width=", self.width, MAX_NETWORK_WIDTH)
        require_at_most("NetworkConfig.embedding=", self.embedding, MAX_NETWORK_WIDTH)
        require_at_most("NetworkConfig.attention_heads=", self.attention_heads, MAX_NETWORK_WIDTH)
        for name in ("width", "attention_heads", "embedding"):
            if getattr(self, name) < 1:
                raise EsperError(f"NetworkConfig.{name}={getattr(self, name)}: must be 1 or more")
        if len(self.op_prior) == LifecycleOp.RESTART:  # as it was before there were restarts
            object.__setattr__(self, "op_prior", (*self.op_prior, 0.0))
        fits = len(self.op_prior) == len(LifecycleOp)
        if not (fits and (np.abs(self.op_prior) <= MAX_ABS_PRIOR).all()):
            raise EsperError(
                f"NetworkConfig.op_prior={self.op_prior}: expected one number for each of "
                f"{', '.join(op.name for op in LifecycleOp)}, within -1e6..1e6"
            )
        if self.width % self.attention_heads:
            raise EsperError(
                f"NetworkConfig.width={self.width} is not divisible by attention_heads="
                f"{self.attention_heads}: set attention_heads to a divisor of the width"
            )


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """Numbers of features and operations: all that the shapes of the network's weights depend on,
    besides its own sizes."""

    global_features: int
    """G."""
    slot_features: int
    """F."""
    candidate_features: int
    """D."""
    restarts: bool = field(default=False, metadata=LATER)
    """RESTART is among the operations."""

    @property
    def ops(self) -> int:
        """Outputs of the OP head."""
        return op_choices(self.restarts)
