"""How large the policy network is, and what it is shown; no torch, so a config can name it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from esper.leyline.actions import LifecycleOp
from esper.leyline.errors import EsperError
from esper.leyline.limits import MAX_NETWORK_WIDTH, require_at_most

LARGEST_PRIOR: Final = 1e6
"""Of an operation, up or down; beyond it float32 may overflow."""


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """How large the policy network is."""

    width: int = 64
    """Numbers in a token, in the recurrent core and in a head's hidden layer."""
    attention_heads: int = 2
    """Attention heads over the slots; they share the width."""
    embedding: int = 16
    """Numbers that stand for a blueprint."""
    core: Literal["lstm", "memoryless"] = "lstm"
    """What carries over from step to step; `memoryless` is there to show what that is worth."""
    op_prior: tuple[float, ...] = (0.0,) * len(LifecycleOp)
    """What a fresh policy tends to do: a log-weight for each `LifecycleOp`. Under even chances no
    seed lives long enough to show its worth; the prior is where learning starts, not a limit."""

    def __post_init__(self) -> None:
        require_at_most("NetworkConfig.width=", self.width, MAX_NETWORK_WIDTH)
        require_at_most("NetworkConfig.embedding=", self.embedding, MAX_NETWORK_WIDTH)
        require_at_most("NetworkConfig.attention_heads=", self.attention_heads, MAX_NETWORK_WIDTH)
        for name in ("width", "attention_heads", "embedding"):
            if getattr(self, name) < 1:
                raise EsperError(f"NetworkConfig.{name}={getattr(self, name)}: must be 1 or more")
        fits = len(self.op_prior) == len(LifecycleOp)
        if not (fits and (np.abs(self.op_prior) <= LARGEST_PRIOR).all()):
            raise EsperError(
                f"NetworkConfig.op_prior={self.op_prior}: one number for each of "
                f"{', '.join(op.name for op in LifecycleOp)}, within -1e6..1e6"
            )
        if self.width % self.attention_heads:
            raise EsperError(
                f"NetworkConfig.width={self.width} cannot be shared by {self.attention_heads} "
                f"attention heads: set attention_heads to a divisor of the width"
            )


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """What the network is shown; everything about the hosts that its weights depend on."""

    global_features: int
    """G."""
    slot_features: int
    """F."""
    blueprints: tuple[str, ...]
    """Names behind the blueprint indices, one embedding each."""

    def __post_init__(self) -> None:
        if min(self.global_features, self.slot_features, len(self.blueprints)) < 1:
            raise EsperError(f"{self}: at least one feature of each kind and one blueprint")
