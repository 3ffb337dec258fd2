"""The loss family: progress is the fall of the loss, as a share of the fresh host's.

    merit_t = 1 - loss_t / loss_0            score_t = merit_t - rent * log2(1 + dP / P0)

Losses have no counterfactual here. What a step brings is shared equally by the seeds that are
blended in at that step, the host's own progress included: a seed's worth is the sum of its shares.

Shape letters: E members, S slots.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from esper.leyline.arrays import Doubles
from esper.leyline.rewards import RewardInputs
from esper.simic.rewards.family import OCCUPIED, Family, Progress, growth, settled


class LossFamily(Family):
    """Remembers the first loss, what has been paid, and what seeds have gathered."""

    ARRAYS: ClassVar[tuple[str, ...]] = ("first_loss_E", "merit_E", "score_E", "worth_ES")
    first_loss_E: Doubles
    merit_E: Doubles
    score_E: Doubles
    worth_ES: Doubles

    def __init__(self, rent: float) -> None:
        """`rent`: price of growth in the score, per doubling of the parameters."""
        self.rent = rent

    def begin(self, inputs: RewardInputs) -> None:
        """From the loss of the fresh host; a broken one counts as 1."""
        loss_E = inputs.loss_before_E
        self.first_loss_E = np.where(np.isfinite(loss_E) & (loss_E > 0), loss_E, 1.0)
        self.merit_E = np.zeros(inputs.members)
        self.score_E = np.zeros(inputs.members)
        self.worth_ES = np.zeros(inputs.stage_ES.shape)

    def measure(self, inputs: RewardInputs) -> Progress:
        """Changes of the relative loss, and who gets a share."""
        now = self._stands(inputs.loss_E, inputs.added_params_E, inputs.host_params)
        snapshot = self._stands(
            inputs.snapshot_loss_E, inputs.snapshot_params_E, inputs.host_params
        )
        merit_E = settled(now[0], snapshot[0], self.merit_E, inputs)
        score_E = settled(now[1], snapshot[1], self.score_E, inputs)
        merit_change_E, score_change_E = merit_E - self.merit_E, score_E - self.score_E
        self.merit_E, self.score_E = merit_E, score_E
        self._share(inputs, merit_change_E)
        return Progress(score_E, score_change_E, merit_change_E, self.worth_ES)

    def _stands(
        self, loss_E: Doubles, added_params_E: Doubles, host_params: int
    ) -> tuple[Doubles, Doubles]:
        """Merit and score of members with this loss that have grown by so much."""
        merit_E = 1.0 - loss_E / self.first_loss_E
        return merit_E, merit_E - self.rent * growth(added_params_E, host_params)

    def _share(self, inputs: RewardInputs, change_E: Doubles) -> None:
        """Equal shares for the seeds that are blended in; a seed that is gone takes its along."""
        stands_ES = OCCUPIED[inputs.stage_ES]
        blended_ES = stands_ES & (inputs.alpha_ES > 0)
        change_E = np.where(inputs.rolled_back_E, 0.0, change_E)
        share_E = change_E / np.maximum(blended_ES.sum(axis=1), 1)
        gathered_ES = self.worth_ES + np.where(blended_ES, share_E[:, None], 0.0)
        self.worth_ES = np.where(stands_ES, gathered_ES, 0.0)
