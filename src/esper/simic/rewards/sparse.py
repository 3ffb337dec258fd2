"""Rewards for the result alone: `sparse`, and `minimal`, which charges upkeep on the way.

A step that is a rollback pays the penalty and is a terminal: what led to it has no part in the end.

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
    """The final score at the end of the episode; upkeep at every step."""

    def paid(self, inputs: RewardInputs, progress: Progress) -> dict[str, Doubles]:
        """The score where the episode is over; a rollout that is merely cut pays no end."""
        return {"score": np.where(inputs.episode_over, progress.score_E, 0.0)}


class SparseReward(MinimalReward):
    """The final score at the end of the episode, nothing else but penalties."""

    CHARGES_UPKEEP: ClassVar[bool] = False
