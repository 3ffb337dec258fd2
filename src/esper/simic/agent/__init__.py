"""The PPO agent: config, rollout buffer, update, saving."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.leyline.lazy import attach

if TYPE_CHECKING:
    from esper.simic.agent.agent import PPOAgent as PPOAgent
    from esper.simic.agent.buffer import RolloutBuffer as RolloutBuffer
    from esper.simic.agent.config import PPOConfig as PPOConfig
else:
    __getattr__, __dir__, __all__ = attach(__name__)
