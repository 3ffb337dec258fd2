"""The contribution family: progress is accuracy, the worth of a seed its contribution to it.

A seed's worth is its last measured counterfactual contribution, so it earns nothing for progress of
the host. The progress of a member is its accuracy on `val_control`, or its score.

Shape letters: E members, S slots.
"""

from __future__ import annotations

import numpy as np

from esper.leyline.arrays import Doubles
from esper.leyline.rewards import RewardInputs
from esper.leyline.stage_masks import IS_OCCUPIED
from esper.simic.rewards.family import Family, Progress, current_value
from esper.simic.rewards.score import score_after_step


class ContributionFamily(Family):
    """Keeps the accuracy that was already paid for."""

    accuracy_E: Doubles

    def begin(self, inputs: RewardInputs) -> None:
        """Start from the accuracy of the initial host."""
        self.accuracy_E = np.nan_to_num(inputs.accuracy_before_E, posinf=0.0, neginf=0.0)

    def measure(self, inputs: RewardInputs) -> Progress:
        """Changes of score and accuracy, and contributions of seeds."""
        score_E = score_after_step(inputs)
        accuracy_E = current_value(
            inputs.accuracy_E, inputs.snapshot_accuracy_E, self.accuracy_E, inputs
        )
        change_E = accuracy_E - self.accuracy_E
        self.accuracy_E = accuracy_E
        return Progress(score_E, score_E - inputs.score_before_E, change_E, _contributions(inputs))


def _contributions(inputs: RewardInputs) -> Doubles:
    """Contribution `[E, S]` of each seed; 0 for empty slots and unmeasured seeds.

    For a member that was rolled back, seeds keep their value of the step before: the current
    measurement is of the discarded state.
    """
    back_E1 = inputs.rolled_back_E[:, None]
    found_ES = np.where(back_E1, inputs.contribution_before_ES, inputs.contribution_ES)
    return np.where(IS_OCCUPIED[inputs.stage_ES] & np.isfinite(found_ES), found_ES, 0.0)
