"""Potential-based reward modes `shaped` and `simplified`.

The potential is summed over all slots at every step; each step pays its change, so it telescopes
(gamma = 1):

    potential = sum over slots of  stage_weight * stage  +  contribution_weight * worth

In `shaped` it is added to the score and is 0 at every terminal (episode end, rollback), so it sums
to 0 over an episode and leaves the optimal policy unchanged. In `simplified` it is the objective:
seeds are paid their final worth.

Shape letters: E members, S slots.
"""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from esper.leyline.arrays import Doubles
from esper.leyline.rewards import RewardInputs
from esper.leyline.stages import SeedStage
from esper.simic.rewards.base import ModeReward
from esper.simic.rewards.family import Progress

_PATH: Final = (
    SeedStage.GERMINATED,
    SeedStage.TRAINING,
    SeedStage.BLENDING,
    SeedStage.HOLDING,
    SeedStage.FOSSILIZED,
)
STAGE_POTENTIAL: Final[Doubles] = np.array(
    [(_PATH.index(stage) + 1) / len(_PATH) if stage in _PATH else 0.0 for stage in SeedStage]
)
"""Progress of a seed by stage, from 0 (none) to 1 (fossilised)."""


class ScoreChangeReward(ModeReward):
    """`score` of the loss family: change of score - upkeep. `ScoreReward` is the other's."""

    def paid(self, inputs: RewardInputs, progress: Progress) -> dict[str, Doubles]:
        """Change of score."""
        return {"score": progress.score_change_E}


class _WithPotential(ModeReward):
    """Keeps the potential that was already paid."""

    potential_E: Doubles

    def begin(self, inputs: RewardInputs) -> None:
        """Reset the potential to 0."""
        super().begin(inputs)
        self.potential_E = np.zeros(inputs.members)

    def _move_to(self, potential_E: Doubles) -> Doubles:
        """Change from the last potential to this one."""
        change_E = potential_E - self.potential_E
        self.potential_E = potential_E
        return change_E


class ShapedReward(_WithPotential):
    """Change of score + change of potential (0 at terminals) - upkeep."""

    def paid(self, inputs: RewardInputs, progress: Progress) -> dict[str, Doubles]:
        """Changes of score and potential."""
        per_slot_ES = (
            self.config.stage_weight * STAGE_POTENTIAL[inputs.stage_ES]
            + self.config.contribution_weight * progress.worth_ES
        )
        potential_E = np.where(inputs.terminal, 0.0, per_slot_ES.sum(axis=1))
        return {"score": progress.score_change_E, "potential": self._move_to(potential_E)}


class SimplifiedReward(_WithPotential):
    """Change of the total worth of seeds - rent - upkeep; nothing for the host."""

    CHARGES_RENT: ClassVar[bool] = True

    def paid(self, inputs: RewardInputs, progress: Progress) -> dict[str, Doubles]:
        """Change of worth."""
        worth_E = self.config.contribution_weight * progress.worth_ES.sum(axis=1)
        return {"worth": self._move_to(worth_E)}
