"""Rewards for plain progress: `basic`, and `basic_plus` with a drip for permanent seeds.

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
        """What the member has learnt, host and seeds together."""
        return {"progress": progress.merit_change_E}


class BasicPlusReward(BasicReward):
    """`basic`, and each step a T-th of what every permanent seed is worth at that step.

    A seed that is permanent for n of T steps so gets n / T of its mean worth: keeping good ones
    early pays, and none gets more than it is worth.
    """

    def paid(self, inputs: RewardInputs, progress: Progress) -> dict[str, Doubles]:
        """Progress and drip; none where a member was set back."""
        drips_ES = (inputs.stage_ES == SeedStage.FOSSILIZED) & ~inputs.rolled_back_E[:, None]
        worth_E = np.where(drips_ES, progress.worth_ES, 0.0).sum(axis=1)
        drip_E = self.config.contribution_weight / inputs.episode_length * worth_E
        return super().paid(inputs, progress) | {"drip": drip_E}
