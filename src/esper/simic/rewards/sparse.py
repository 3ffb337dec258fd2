"""Reward modes `sparse` (final score only) and `minimal` (final score minus upkeep).

A rollback pays the penalty and is terminal: steps before it get no part of the final score.

Shape letters: E members.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from esper.leyline.arrays import Doubles
from esper.leyline.rewards import RewardInputs
from esper.simic.rewards.base import ModeReward
from esper.simic.rewards.family import Progress


class MinimalReward(ModeReward):
    """Final score at the end of the episode, minus upkeep at every step."""

    def paid(self, inputs: RewardInputs, progress: Progress) -> dict[str, Doubles]:
        """Score at the end of the episode; nothing where only the rollout ends."""
        return {"score": np.where(inputs.episode_over, progress.score_E, 0.0)}


class SparseReward(MinimalReward):
    """Final score at the end of the episode, minus penalties."""

    CHARGES_UPKEEP: ClassVar[bool] = False
