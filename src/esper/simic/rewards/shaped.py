"""Rewards with a potential: `shaped` (the score, and hints on the way) and `simplified`.

One potential, summed over all slots at every step, whatever the action was; each step pays its
change, so it telescopes (gamma = 1):

    potential = sum over slots of  stage_weight * stage  +  contribution_weight * worth

In `shaped` it is a hint: it is 0 at every terminal (end of the episode, rollback), so over an
episode it pays nothing, and which policy is best is left as it was. In `simplified` it is the aim:
what seeds are worth at the end is what was paid for them.

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
"""By stage: how far a seed has come, 0 (none stands there) to 1 (permanent)."""


class ScoreChangeReward(ModeReward):
    """`score` of any family: change of score - upkeep. For accuracy, `ScoreReward` is the same."""

    def paid(self, inputs: RewardInputs, progress: Progress) -> dict[str, Doubles]:
        """The change of score."""
        return {"score": progress.score_change_E}


class _WithPotential(ModeReward):
    """Remembers the potential that has been paid; 0 before the first step."""

    ARRAYS: ClassVar[tuple[str, ...]] = ("potential_E",)
    potential_E: Doubles

    def begin(self, inputs: RewardInputs) -> None:
        """Nothing paid."""
        self.potential_E = np.zeros(inputs.members)

    def _move_to(self, potential_E: Doubles) -> Doubles:
        """The way from the last potential to this one."""
        change_E = potential_E - self.potential_E
        self.potential_E = potential_E
        return change_E


class ShapedReward(_WithPotential):
    """Change of score + change of potential (0 at terminals) - upkeep."""

    def paid(self, inputs: RewardInputs, progress: Progress) -> dict[str, Doubles]:
        """Score and potential."""
        per_slot_ES = (
            self.config.stage_weight * STAGE_POTENTIAL[inputs.stage_ES]
            + self.config.contribution_weight * progress.worth_ES
        )
        potential_E = np.where(inputs.terminal, 0.0, per_slot_ES.sum(axis=1))
        return {"score": progress.score_change_E, "potential": self._move_to(potential_E)}


class SimplifiedReward(_WithPotential):
    """Change of what all seeds together are worth - rent - upkeep; nothing for the host."""

    CHARGES_RENT: ClassVar[bool] = True

    def paid(self, inputs: RewardInputs, progress: Progress) -> dict[str, Doubles]:
        """Worth."""
        worth_E = self.config.contribution_weight * progress.worth_ES.sum(axis=1)
        return {"worth": self._move_to(worth_E)}
