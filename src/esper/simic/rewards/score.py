"""`ScoreReward`, the default: change of score minus upkeep and penalties.

    r_t = score_t - score_(t-1) - upkeep_t

Over an episode it sums to the final minus the initial score, minus upkeep and penalties, so the
objective is the reported metric. For a member that the governor rolled back, the step pays the
change to the snapshot's score and a penalty; the next step starts from there.

Shape letters: E members, T steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from esper.leyline.arrays import Doubles
from esper.leyline.errors import EsperError
from esper.leyline.rewards import RewardComponentsTelemetry, RewardInputs
from esper.tasks.scoring import Upkeep, live_seeds, upkeep


def plan_reward(inputs: RewardInputs) -> tuple[Doubles, RewardComponentsTelemetry]:
    """Reward `[E]` of a decision of the plan phase and its component, in every mode and family.

    It is the change of score: planting changes it before anything has trained, and steps are paid
    from there on, so rewards still sum to the change from the host. A mode's own state starts with
    the first step.
    """
    change = {"score": inputs.score_E - inputs.score_before_E}
    components = RewardComponentsTelemetry.of(change, inputs.members)
    return components.total, components


def score_after_step(inputs: RewardInputs) -> Doubles:
    """Score after the step; the snapshot's for members that were rolled back."""
    return np.where(inputs.rolled_back_E, inputs.snapshot_score_E, inputs.score_E)


def step_upkeep(inputs: RewardInputs, rule: Upkeep) -> Doubles:
    """Upkeep of active seeds in a step; 0 for members that were rolled back."""
    kept_E = upkeep(inputs.live_mac_share_E, live_seeds(inputs.stage_ES), rule)
    return np.where(inputs.rolled_back_E, 0.0, kept_E)


@dataclass(frozen=True, slots=True)
class ScoreReward:
    """A stateless `RewardProtocol`."""

    rule: Upkeep = field(default_factory=Upkeep)
    """Upkeep of active seeds."""
    rollback_penalty: float = 0.1
    """Penalty for a rollback by the governor, in score."""
    baseline_curve: tuple[float, ...] | None = None
    """Mean score of `wait` on the task, initially and after each step (T + 1 values). Its change is
    subtracted. It depends on the step only: less variance, same optimal policy."""

    def __post_init__(self) -> None:
        for t, value in enumerate(self.baseline_curve or ()):
            if not math.isfinite(value):
                raise EsperError(f"baseline_curve[{t}] is {value}: every score must be finite")

    def __call__(self, inputs: RewardInputs, /) -> tuple[Doubles, RewardComponentsTelemetry]:
        if inputs.planning:
            return plan_reward(inputs)
        parts = {
            "score": score_after_step(inputs) - inputs.score_before_E,
            "upkeep": -step_upkeep(inputs, self.rule),
            "rollback": -np.where(inputs.rolled_back_E, self.rollback_penalty, 0.0),
        }
        if self.baseline_curve is not None:
            parts["baseline"] = np.full(inputs.members, -self._wait_gain(inputs))
        components = RewardComponentsTelemetry.of(parts, inputs.members)
        return components.total, components

    def _wait_gain(self, inputs: RewardInputs) -> float:
        """Score gain of this step under `wait`."""
        curve = self.baseline_curve or ()
        return curve[inputs.step + 1] - curve[inputs.step]
