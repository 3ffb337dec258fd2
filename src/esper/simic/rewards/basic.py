"""Reward modes `basic` (progress) and `basic_plus` (progress plus a drip for permanent seeds).

Shape letters: E members, S slots.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from esper.leyline.arrays import Doubles
from esper.leyline.rewards import RewardInputs
from esper.leyline.stages import SeedStage
from esper.simic.rewards.base import ModeReward
from esper.simic.rewards.family import Progress


class BasicReward(ModeReward):
    """Change of accuracy (or relative loss) - rent - upkeep."""

    CHARGES_RENT: ClassVar[bool] = True

    def paid(self, inputs: RewardInputs, progress: Progress) -> dict[str, Doubles]:
        """Change of merit of the whole member, host and seeds."""
        return {"progress": progress.merit_change_E}


class BasicPlusReward(BasicReward):
    """`basic` plus, at each of T steps, 1/T of the current worth of every permanent seed.

    A seed that is permanent for n of T steps earns n / T of its mean worth, so fossilising good
    seeds early pays off, and no seed earns more than it is worth.
    """

    def paid(self, inputs: RewardInputs, progress: Progress) -> dict[str, Doubles]:
        """Progress and drip; no drip for members that were rolled back."""
        drips_ES = (inputs.stage_ES == SeedStage.FOSSILIZED) & ~inputs.rolled_back_E[:, None]
        worth_E = np.where(drips_ES, progress.worth_ES, 0.0).sum(axis=1)
        drip_E = self.config.contribution_weight / inputs.episode_length * worth_E
        return super().paid(inputs, progress) | {"drip": drip_E}
