"""`ModeReward`, the base class of all reward modes but plain `score` (score.py, the default).

A mode defines its payments (`paid`) and which charges apply; this class begins episodes and
adds the charges.

Shape letters: E members.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from esper.leyline.arrays import Doubles
from esper.leyline.rewards import RewardComponentsTelemetry, RewardInputs
from esper.simic.rewards.config import RewardConfig
from esper.simic.rewards.contribution import ContributionFamily
from esper.simic.rewards.family import Family, Progress, growth
from esper.simic.rewards.loss import LossFamily
from esper.simic.rewards.score import plan_reward, step_upkeep
from esper.tasks.scoring import Upkeep


class ModeReward(ABC):
    """A `RewardProtocol` with per-episode state."""

    CHARGES_UPKEEP: ClassVar[bool] = True
    CHARGES_RENT: ClassVar[bool] = False

    def __init__(self, config: RewardConfig, rule: Upkeep) -> None:
        """`rule`: the task's upkeep of seeds."""
        self.config = config
        self.rule = rule
        self.family: Family = ContributionFamily()
        if config.family == "loss":
            self.family = LossFamily(config.rent)

    def begin(self, inputs: RewardInputs) -> None:
        """Start an episode of `inputs.members` members."""
        self.family.begin(inputs)

    @abstractmethod
    def paid(self, inputs: RewardInputs, progress: Progress) -> dict[str, Doubles]:
        """Payments of the step by component, before charges."""

    def __call__(self, inputs: RewardInputs, /) -> tuple[Doubles, RewardComponentsTelemetry]:
        if inputs.planning:
            return plan_reward(inputs)
        if inputs.step == 0:
            self.begin(inputs)
        parts = self.paid(inputs, self.family.measure(inputs)) | self._charges(inputs)
        components = RewardComponentsTelemetry.of(parts, inputs.members)
        return components.total, components

    def _charges(self, inputs: RewardInputs) -> dict[str, Doubles]:
        back_E = inputs.rolled_back_E
        charges = {}
        if self.CHARGES_UPKEEP:
            charges["upkeep"] = -step_upkeep(inputs, self.rule)
        if self.CHARGES_RENT:
            rate = self.config.rent / inputs.episode_length
            grown_E = growth(inputs.added_params_E, inputs.host_params)
            charges["rent"] = -np.where(back_E, 0.0, rate * grown_E)
        charges["rollback"] = -np.where(back_E, self.config.rollback_penalty, 0.0)
        return charges
