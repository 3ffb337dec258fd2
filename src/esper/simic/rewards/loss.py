"""The loss family: progress is the decrease of the loss, relative to the initial host's.

    merit_t = 1 - loss_t / loss_0            score_t = merit_t - rent * log2(1 + dP / P0)

There are no counterfactual losses. The change of a step, including the host's own progress, is
shared equally by the seeds blended in at that step; a seed's worth is the sum of its shares.

Shape letters: E members, S slots.
"""

from __future__ import annotations

import numpy as np

from esper.leyline.arrays import Doubles
from esper.leyline.rewards import RewardInputs
from esper.leyline.stage_masks import IS_OCCUPIED
from esper.simic.rewards.family import Family, Progress, current_value, growth


class LossFamily(Family):
    """Keeps the initial loss, merit and score already paid for, and the worth of seeds."""

    first_loss_E: Doubles
    merit_E: Doubles
    score_E: Doubles
    worth_ES: Doubles

    def __init__(self, rent: float) -> None:
        """`rent`: price of growth in the score, per doubling of the parameters."""
        self.rent = rent

    def begin(self, inputs: RewardInputs) -> None:
        """Start from the loss of the initial host; one that is not finite counts as 1."""
        loss_E = inputs.loss_before_E
        self.first_loss_E = np.where(np.isfinite(loss_E) & (loss_E > 0), loss_E, 1.0)
        self.merit_E = np.zeros(inputs.members)
        self.score_E = np.zeros(inputs.members)
        self.worth_ES = np.zeros(inputs.stage_ES.shape)

    def measure(self, inputs: RewardInputs) -> Progress:
        """Changes of merit and score, and updated worth of seeds."""
        now = self._merit_and_score(inputs.loss_E, inputs.added_params_E, inputs.host_params)
        snapshot = self._merit_and_score(
            inputs.snapshot_loss_E, inputs.snapshot_params_E, inputs.host_params
        )
        merit_E = current_value(now[0], snapshot[0], self.merit_E, inputs)
        score_E = current_value(now[1], snapshot[1], self.score_E, inputs)
        merit_change_E, score_change_E = merit_E - self.merit_E, score_E - self.score_E
        self.merit_E, self.score_E = merit_E, score_E
        self._share(inputs, merit_change_E)
        return Progress(score_E, score_change_E, merit_change_E, self.worth_ES)

    def _merit_and_score(
        self, loss_E: Doubles, added_params_E: Doubles, host_params: int
    ) -> tuple[Doubles, Doubles]:
        """Merit and score for this loss and growth."""
        merit_E = 1.0 - loss_E / self.first_loss_E
        return merit_E, merit_E - self.rent * growth(added_params_E, host_params)

    def _share(self, inputs: RewardInputs, change_E: Doubles) -> None:
        """Add equal shares to the blended seeds; the worth of a removed seed is dropped."""
        stands_ES = IS_OCCUPIED[inputs.stage_ES]
        blended_ES = stands_ES & (inputs.alpha_ES > 0)
        change_E = np.where(inputs.rolled_back_E, 0.0, change_E)
        share_E = change_E / np.maximum(blended_ES.sum(axis=1), 1)
        gathered_ES = self.worth_ES + np.where(blended_ES, share_E[:, None], 0.0)
        self.worth_ES = np.where(stands_ES, gathered_ES, 0.0)
