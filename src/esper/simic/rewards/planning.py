"""Reward of the plan phase: the change of score, in every mode and family.

Planting changes the score before anything has trained; steps are paid from there on, so rewards
still sum to the change from the host. A mode's own state starts with the first step.
"""

from __future__ import annotations

from esper.leyline.arrays import Doubles
from esper.leyline.rewards import RewardComponentsTelemetry, RewardInputs


def plan_reward(inputs: RewardInputs) -> tuple[Doubles, RewardComponentsTelemetry]:
    """Reward `[E]` of a decision of the plan phase, and its single component."""
    change = {"score": inputs.score_E - inputs.score_before_E}
    components = RewardComponentsTelemetry.of(change, inputs.members)
    return components.total, components
