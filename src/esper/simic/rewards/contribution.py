"""The contribution family: accuracy counts, and seeds are worth what leaving them out costs.

A seed's worth is its last measured counterfactual contribution, so it earns nothing from what the
host learns by itself. A member's own progress is its accuracy on `val_control`, or its score.

Shape letters: E members, S slots.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from esper.leyline.arrays import Doubles
from esper.leyline.rewards import RewardInputs
from esper.simic.rewards.family import OCCUPIED, Family, Progress, settled
from esper.simic.rewards.score import score_reached


class ContributionFamily(Family):
    """Remembers the accuracy that has been paid."""

    ARRAYS: ClassVar[tuple[str, ...]] = ("accuracy_E",)
    accuracy_E: Doubles

    def begin(self, inputs: RewardInputs) -> None:
        """From the accuracy of the fresh host."""
        self.accuracy_E = np.nan_to_num(inputs.accuracy_before_E, posinf=0.0, neginf=0.0)

    def measure(self, inputs: RewardInputs) -> Progress:
        """Changes of score and accuracy, contributions of seeds."""
        score_E = score_reached(inputs)
        accuracy_E = settled(inputs.accuracy_E, inputs.snapshot_accuracy_E, self.accuracy_E, inputs)
        change_E = accuracy_E - self.accuracy_E
        self.accuracy_E = accuracy_E
        return Progress(score_E, score_E - inputs.score_before_E, change_E, contributions(inputs))


def contributions(inputs: RewardInputs) -> Doubles:
    """`[E, S]`: of seeds that stand, 0 where nothing is measured.

    Where a member was set back, the seeds that are left are worth what they were a step before:
    what was measured since is of the state that was given up.
    """
    back_E1 = inputs.rolled_back_E[:, None]
    found_ES = np.where(back_E1, inputs.contribution_before_ES, inputs.contribution_ES)
    return np.where(OCCUPIED[inputs.stage_ES] & np.isfinite(found_ES), found_ES, 0.0)
