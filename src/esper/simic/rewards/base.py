"""`ModeReward`, the base class of all reward modes but plain `score` (score.py, the default).

A mode defines its payments (`paid`) and which charges apply; this class checks the order of steps,
adds the charges and handles the state.

Shape letters: E members.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from esper.leyline.arrays import Doubles
from esper.leyline.errors import EsperError
from esper.leyline.rewards import RewardComponentsTelemetry, RewardInputs
from esper.simic.rewards.config import RewardConfig
from esper.simic.rewards.contribution import ContributionFamily
from esper.simic.rewards.family import Family, Progress, growth
from esper.simic.rewards.loss import LossFamily
from esper.simic.rewards.memory import EpisodeMemory, State, require_arrays
from esper.simic.rewards.score import plan_reward, step_upkeep
from esper.tasks.scoring import Upkeep

_NEXT_STEP = "next_step"


class ModeReward(EpisodeMemory, ABC):
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
        self._next_step = 0

    @abstractmethod
    def paid(self, inputs: RewardInputs, progress: Progress) -> dict[str, Doubles]:
        """Payments of the step by component, before charges."""

    def __call__(self, inputs: RewardInputs, /) -> tuple[Doubles, RewardComponentsTelemetry]:
        if inputs.planning:
            return plan_reward(inputs)
        self._check_step_order(inputs)
        parts = self.paid(inputs, self.family.measure(inputs)) | self._charges(inputs)
        components = RewardComponentsTelemetry.of(parts, inputs.members)
        return components.total, components

    def _check_step_order(self, inputs: RewardInputs) -> None:
        """Begin an episode at step 0; raise on a repeated or skipped step."""
        if inputs.step == 0:
            self.family.begin(inputs)
            self.begin(inputs)
        elif inputs.step != self._next_step:
            raise EsperError(
                f"reward {self.config.mode!r} called for step {inputs.step}, expected step "
                f"{self._next_step}: start at step 0, or call load_state with what state() returned"
            )
        remembered = len(getattr(self.family, self.family.ARRAYS[0]))
        if remembered != inputs.members:
            raise EsperError(
                f"reward {self.config.mode!r} called for {inputs.members} members in the middle "
                f"of an episode of {remembered}: the number may change between episodes only"
            )
        self._next_step = inputs.step + 1

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

    def state(self) -> State:
        """State of the mode and its family; empty before the first episode."""
        if not self._next_step:
            return {}
        step = np.array(self._next_step, dtype=np.int64)
        return super().state() | self.family.state() | {_NEXT_STEP: step}

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore `state`; raises for one of another mode or family."""
        own, measured = self.ARRAYS, self.family.ARRAYS
        require_arrays(f"reward {self.config.mode!r}", state, (*own, *measured, _NEXT_STEP))
        super().load_state({name: state[name] for name in own if state})
        self.family.load_state({name: state[name] for name in measured if state})
        self._next_step = int(state[_NEXT_STEP]) if state else 0
