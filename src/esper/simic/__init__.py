"""Simic: trains the controller. PPO agent, rewards, normalisers, telemetry and run folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.leyline.lazy import attach

if TYPE_CHECKING:
    from esper.simic.client import SimicClient as SimicClient
    from esper.simic.training.config import TrainingConfig as TrainingConfig
    from esper.simic.training.vectorized import train_ppo_vectorized as train_ppo_vectorized
    from esper.tolaria.env_state import ParallelEnvState as ParallelEnvState
else:
    __getattr__, __dir__, __all__ = attach(__name__)
