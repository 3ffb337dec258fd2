"""What the learner is set to. `docs/ppo.md` says why each is what it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

import tyro

from esper.leyline.actions import ActionHead
from esper.leyline.errors import EsperError
from esper.leyline.limits import MAX_EPOCHS, require_at_most
from esper.simic.training.schedules import Schedule
from esper.tamiyo.network_config import NetworkConfig

NO_PREFIX: Final = tyro.conf.arg(name="")
"""On a command line the settings of such a part go by their own names."""
LARGEST_WEIGHT: Final = 1e6
"""Of a part of the loss; far beyond what is useful, and float32 does not overflow."""


@dataclass(frozen=True, slots=True)
class PPOConfig:
    """Settings of PPO. Schedules count update passes."""

    network: Annotated[NetworkConfig, NO_PREFIX] = field(default_factory=NetworkConfig)
    """How large the policy network is; fixed for the life of an agent."""
    gamma: float = 1.0
    """Discount of a step; 1 where episodes have a fixed length."""
    gae_lambda: float = 0.95
    """How far advantages look along the rollout (1) rather than to the value estimate (0)."""
    learning_rate: Schedule = field(default_factory=lambda: Schedule(1e-3))
    """Step size of Adam."""
    epochs: int = 4
    """Passes over the rollout in one update."""
    minibatches: int = 4
    """Parts the members are dealt into; fewer where there are fewer members."""
    clip: float = 0.2
    """How far the probability of a joint action may move before its gradient stops."""
    value_clip: float | None = None
    """How far a value may move in one update, in scaled reward; None does not limit it."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy: Schedule = field(default_factory=lambda: Schedule(0.01))
    """Weight of the entropy bonus."""
    head_entropy: tuple[float, ...] = (1.0,) * len(ActionHead)
    """Weight of each head in the bonus, in the order of `ActionHead`."""
    exploration: Schedule = field(default_factory=lambda: Schedule(0.0))
    """Share of the masked uniform distribution mixed into every head, 0..1."""
    max_grad_norm: float = 0.5
    """Gradients longer than this are shortened to it."""
    target_kl: float | None = 0.05
    """An update stops where it is further than this from the rollout's policy; None: never."""
    normalize_advantages: bool = True
    """Bring a rollout's advantages to mean 0 and deviation 1."""
    normalize_observations: bool = True
    """Bring each feature to mean 0 and deviation 1, by running statistics."""
    normalize_rewards: bool = True
    """Divide rewards by the running deviation of the return."""

    def __post_init__(self) -> None:
        require_at_most("PPOConfig.epochs=", self.epochs, MAX_EPOCHS)
        require_at_most("PPOConfig.minibatches=", self.minibatches)
        for name in ("gamma", "gae_lambda"):
            _require_within(name, getattr(self, name), 1.0)
        for name in ("epochs", "minibatches"):
            _require(name, getattr(self, name), getattr(self, name) >= 1, "1 or more")
        for name in ("clip", "max_grad_norm", "value_clip", "target_kl"):
            value = getattr(self, name)
            holds = value is None or 0.0 < value < math.inf
            _require(name, value, holds, "above 0, and finite")
        _require_within("value_coef", self.value_coef, LARGEST_WEIGHT)
        self._check_head_entropy(self.head_entropy)
        self.learning_rate.require_within("PPOConfig.learning_rate", 0.0, 1.0)
        self.entropy.require_within("PPOConfig.entropy", 0.0, LARGEST_WEIGHT)
        self.exploration.require_within("PPOConfig.exploration", 0.0, 1.0)

    @staticmethod
    def _check_head_entropy(weights: Sequence[float]) -> None:
        found, heads = len(weights), len(ActionHead)
        _require("head_entropy", weights, found == heads, f"one number a head, {heads} of them")
        for head, weight in zip(ActionHead, weights, strict=True):
            _require_within(f"head_entropy of {head.name}", weight, LARGEST_WEIGHT)


def _require_within(name: str, value: float, most: float) -> None:
    _require(name, value, 0.0 <= value <= most, f"within 0..{most:g}")


def _require(name: str, value: object, holds: bool, rule: str) -> None:
    if not holds:
        raise EsperError(f"PPOConfig.{name}={value}: must be {rule}")
