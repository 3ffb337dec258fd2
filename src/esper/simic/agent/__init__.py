"""The PPO agent: what it is set to, what it remembers of a rollout, how it learns from it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper.simic.agent.agent import PPOAgent as PPOAgent
    from esper.simic.agent.buffer import RolloutBuffer as RolloutBuffer
    from esper.simic.agent.config import PPOConfig as PPOConfig

_HOME = {"PPOAgent": "agent", "PPOConfig": "config", "RolloutBuffer": "buffer"}

__all__ = ["PPOAgent", "PPOConfig", "RolloutBuffer"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
