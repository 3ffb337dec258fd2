"""The reward that is the score: each step pays its change, minus upkeep and penalties.

    r_t = score_t - score_(t-1) - upkeep_t

Over an episode it adds up to the final score minus the first one, minus upkeep and penalties, so
what is learnt is what is reported. Where the governor set a member back, the step pays the way to
the snapshot instead, and a penalty; the next step starts from there.

Shape letters: E members, T steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.leyline.arrays import Doubles
from esper.leyline.errors import EsperError
from esper.leyline.rewards import RewardComponentsTelemetry, RewardInputs
from esper.simic.rewards.memory import State, refuse_other
from esper.tasks.scoring import Upkeep, live_seeds, upkeep


def score_reached(inputs: RewardInputs) -> Doubles:
    """The score a step ends with: where a member was set back, its snapshot's."""
    return np.where(inputs.rolled_back_E, inputs.snapshot_score_E, inputs.score_E)


def upkeep_paid(inputs: RewardInputs, rule: Upkeep) -> Doubles:
    """What live seeds cost in a step; nothing where a member was set back."""
    kept_E = upkeep(inputs.live_mac_share_E, live_seeds(inputs.stage_ES), rule)
    return np.where(inputs.rolled_back_E, 0.0, kept_E)


@dataclass(frozen=True, slots=True)
class ScoreReward:
    """A `RewardProtocol`: no state, so a run can be resumed with a fresh one."""

    rule: Upkeep = field(default_factory=Upkeep)
    """What live seeds cost."""
    rollback_penalty: float = 0.1
    """Taken off where the governor set a member back, in score."""
    baseline_curve: tuple[float, ...] | None = None
    """Mean score of `wait` on the task, of the fresh host and after each step: T + 1 values whose
    change is taken off, so that members are paid for what waiting would not have brought. It is a
    function of t alone: less variance, the same best policy."""

    def __post_init__(self) -> None:
        if not 0 <= self.rollback_penalty < math.inf:
            raise EsperError(
                f"rollback_penalty={self.rollback_penalty}: must be 0 or more, and finite"
            )
        for t, value in enumerate(self.baseline_curve or ()):
            if not math.isfinite(value):
                raise EsperError(f"baseline_curve[{t}] is {value}: every score must be finite")

    def __call__(self, inputs: RewardInputs, /) -> tuple[Doubles, RewardComponentsTelemetry]:
        parts = {
            "score": score_reached(inputs) - inputs.score_before_E,
            "upkeep": -upkeep_paid(inputs, self.rule),
            "rollback": -np.where(inputs.rolled_back_E, self.rollback_penalty, 0.0),
        }
        if self.baseline_curve is not None:
            parts["baseline"] = np.full(inputs.members, -self._waiting(inputs))
        components = RewardComponentsTelemetry.of(parts, inputs.members)
        return components.total, components

    def _waiting(self, inputs: RewardInputs) -> float:
        """What the step brings a host that is left alone."""
        curve = self.baseline_curve or ()
        if len(curve) != inputs.episode_length + 1:
            raise EsperError(
                f"baseline_curve has {len(curve)} scores: an episode of {inputs.episode_length} "
                f"steps needs {inputs.episode_length + 1}, the fresh host's first"
            )
        return curve[inputs.step + 1] - curve[inputs.step]

    def state(self) -> State:
        """Nothing to remember."""
        return {}

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Nothing to go on with; the state of another mode is refused."""
        refuse_other(type(self).__name__, state, ())
