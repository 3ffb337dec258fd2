"""`PPOConfig`, the hyperparameters of PPO; docs/ppo.md explains the defaults.

The presets of `esper train ppo` (simic/training/config.py) change some of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

import tyro

from esper.leyline.actions import ActionHead
from esper.leyline.errors import EsperError
from esper.leyline.limits import MAX_EPOCHS, require_at_most
from esper.simic.agent.schedule import Schedule
from esper.tamiyo.network_config import NetworkConfig

NO_PREFIX: Final = tyro.conf.arg(name="")
"""Flags of a nested config are named without its prefix."""
MAX_WEIGHT: Final = 1e6
"""Maximum weight of a loss term; below it float32 does not overflow."""


@dataclass(frozen=True, slots=True)
class PPOConfig:
    """PPO settings. Schedules count update passes."""

    network: Annotated[NetworkConfig, NO_PREFIX] = field(default_factory=NetworkConfig)
    """Size of the policy network; cannot change after an agent is created."""
    gamma: float = 1.0
    """Discount factor; 1 suits episodes of fixed length."""
    gae_lambda: float = 0.95
    """GAE lambda: 0 uses one-step value estimates, 1 the full return."""
    learning_rate: Schedule = field(default_factory=lambda: Schedule(1e-3))
    """Adam learning rate."""
    epochs: int = 4
    """Epochs over the rollout per update."""
    minibatches: int = 4
    """Minibatches per epoch, split by members; at most one per member."""
    clip: float = 0.2
    """PPO clip range of the joint action's probability ratio."""
    value_clip: float | None = None
    """Clip range of the value, in scaled reward; None: no clipping."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy: Schedule = field(default_factory=lambda: Schedule(0.01))
    """Weight of the entropy bonus."""
    head_entropy: tuple[float, ...] = (1.0,) * len(ActionHead)
    """Weight of each head in the entropy bonus, in the order of `ActionHead`."""
    exploration: Schedule = field(default_factory=lambda: Schedule(0.0))
    """Fraction of the masked uniform distribution mixed into every head, 0..1."""
    max_grad_norm: float = 0.5
    """Maximum gradient norm."""
    target_kl: float | None = 0.05
    """KL divergence from the rollout policy at which an update stops early; None: no limit."""
    curve_dropout: float = 0.0
    """Probability that a member's whole episode hides its learning curve (losses, accuracies,
    gradients, contributions) from the policy, so that it also learns to decide without it."""
    normalize_advantages: bool = True
    """Normalise the advantages of a rollout to mean 0 and standard deviation 1."""
    normalize_observations: bool = True
    """Normalise each feature by its running mean and standard deviation."""
    normalize_rewards: bool = True
    """Divide rewards by the running standard deviation of the return."""

    def __post_init__(self) -> None:
        require_at_most("PPOConfig.epochs=", self.epochs, MAX_EPOCHS)
        require_at_most("PPOConfig.minibatches=", self.minibatches)
        for name in ("gamma", "gae_lambda", "curve_dropout"):
            _require_within(name, getattr(self, name), 1.0)
        for name in ("epochs", "minibatches"):
            _require(name, getattr(self, name), getattr(self, name) >= 1, "1 or more")
        for name in ("clip", "max_grad_norm", "value_clip", "target_kl"):
            value = getattr(self, name)
            holds = value is None or 0.0 < value < math.inf
            _require(name, value, holds, "above 0, and finite")
        _require_within("value_coef", self.value_coef, MAX_WEIGHT)
        self._check_head_entropy(self.head_entropy)
        self.learning_rate.require_within("PPOConfig.learning_rate", 0.0, 1.0)
        self.entropy.require_within("PPOConfig.entropy", 0.0, MAX_WEIGHT)
        self.exploration.require_within("PPOConfig.exploration", 0.0, 1.0)

    @staticmethod
    def _check_head_entropy(weights: Sequence[float]) -> None:
        found, heads = len(weights), len(ActionHead)
        _require("head_entropy", weights, found == heads, f"one number per head, {heads} of them")
        for head, weight in zip(ActionHead, weights, strict=True):
            _require_within(f"head_entropy of {head.name}", weight, MAX_WEIGHT)


def _require_within(name: str, value: float, most: float) -> None:
    _require(name, value, 0.0 <= value <= most, f"within 0..{most:g}")


def _require(name: str, value: object, holds: bool, rule: str) -> None:
    if not holds:
        raise EsperError(f"PPOConfig.{name}={value}: must be {rule}")
