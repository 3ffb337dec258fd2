"""The reward that is the score: each step pays its change, minus upkeep and penalties.

    r_t = score_t - score_(t-1) - upkeep_t

Over an episode it adds up to the final score minus the first one, minus upkeep and penalties, so
what is learnt is what is reported. Where the governor set a member back, the step pays the way to
the snapshot instead, and a penalty; the next step starts from there.

Shape letters: E members.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from esper.leyline.arrays import Doubles
from esper.leyline.errors import EsperError
from esper.leyline.rewards import RewardComponentsTelemetry, RewardInputs
from esper.tasks.scoring import Upkeep, live_seeds, upkeep


@dataclass(frozen=True, slots=True)
class ScoreReward:
    """A `RewardProtocol`: no state, so a run can be resumed with a fresh one."""

    rule: Upkeep = field(default_factory=Upkeep)
    """What live seeds cost."""
    rollback_penalty: float = 0.1
    """Taken off where the governor set a member back, in score."""

    def __post_init__(self) -> None:
        if not 0 <= self.rollback_penalty < math.inf:
            raise EsperError(
                f"rollback_penalty={self.rollback_penalty}: must be 0 or more, and finite"
            )

    def __call__(self, inputs: RewardInputs, /) -> tuple[Doubles, RewardComponentsTelemetry]:
        back_E = inputs.rolled_back_E
        reached_E = np.where(back_E, inputs.snapshot_score_E, inputs.score_E)
        kept_E = upkeep(inputs.live_mac_share_E, live_seeds(inputs.stage_ES), self.rule)
        parts = {
            "score": reached_E - inputs.score_before_E,
            "upkeep": -np.where(back_E, 0.0, kept_E),
            "rollback": -np.where(back_E, self.rollback_penalty, 0.0),
        }
        components = RewardComponentsTelemetry.of(parts, inputs.members)
        return components.total, components
