"""Rewards of a user: by `FILE.py:NAME`, or passed as an object and recorded by its name."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Final

from esper.leyline.errors import EsperError, shown
from esper.leyline.protocols import RewardProtocol
from esper.leyline.user_errors import user_code
from esper.simic.rewards.config import RewardConfig
from esper.tasks.task_files import is_file_reference
from esper.tasks.user_objects import UserFiles

OBJECT: Final = "object:"
"""Start of the record of a reward that was passed as an object, which only the caller has."""


def recorded(config: RewardConfig, reward: RewardProtocol | None) -> RewardConfig:
    """The config with the name of a reward that is passed as an object."""
    if reward is None:
        return config
    named = reward if hasattr(reward, "__qualname__") else type(reward)
    return replace(config, own=f"{OBJECT}{named.__module__}.{named.__qualname__}")


def load_own_reward(own: str) -> RewardProtocol:
    """Run the file and return its reward; a class is called without arguments."""
    if own.startswith(OBJECT):
        raise EsperError(
            f"reward {own.removeprefix(OBJECT)} was passed as an object, which is not stored: give "
            f"it again as reward=, or train with --reward FILE.py:NAME"
        )
    if not is_file_reference(own):
        raise EsperError(f"reward {shown(own)}: name a function in a file, as in mine.py:reward")
    found = UserFiles().find(own)
    if inspect.isclass(found):
        with user_code(f"reward {shown(own)} cannot be made", "it is called without arguments"):
            found = found()
    if not callable(found):
        raise EsperError(f"reward {shown(own)}: {type(found).__name__} cannot be called")
    reward: RewardProtocol = found
    return reward
