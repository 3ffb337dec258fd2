"""Simic: how the decider learns. PPO, rewards, normalisers, telemetry of the learner."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper.simic.client import SimicClient as SimicClient
    from esper.simic.training.config import TrainingConfig as TrainingConfig
    from esper.simic.training.vectorized import train_ppo_vectorized as train_ppo_vectorized
    from esper.tolaria.env_state import ParallelEnvState as ParallelEnvState

_HOME = {
    "ParallelEnvState": "esper.tolaria.env_state",
    "SimicClient": "esper.simic.client",
    "TrainingConfig": "esper.simic.training.config",
    "train_ppo_vectorized": "esper.simic.training.vectorized",
}

__all__ = ["ParallelEnvState", "SimicClient", "TrainingConfig", "train_ppo_vectorized"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
