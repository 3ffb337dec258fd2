"""`Family`, the interface of reward families: progress of a member and worth of its seeds.

Families (`contribution.py`, `loss.py`) measure, modes (the other modules) pay. All components that
depend on a seed use `worth_ES`.

Shape letters: E members, S slots.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from esper.leyline.arrays import Doubles
from esper.leyline.rewards import RewardInputs


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a step, in units of accuracy (0..1)."""

    score_E: Doubles
    """Score after the step, net of the price of growth."""
    score_change_E: Doubles
    merit_change_E: Doubles
    """Change of performance, regardless of growth."""
    worth_ES: Doubles
    """Current worth of each seed; 0 for empty slots and unmeasured seeds."""


class Family(ABC):
    """Measures progress."""

    @abstractmethod
    def begin(self, inputs: RewardInputs) -> None:
        """Start an episode of `inputs.members` members."""

    @abstractmethod
    def measure(self, inputs: RewardInputs) -> Progress:
        """Progress of the step; call once per step, after `begin` at the start of an episode."""


def growth(added_params_E: Doubles, host_params: int) -> Doubles:
    """Growth `[E]` in doublings of the host's parameters."""
    return np.asarray(np.log2(1.0 + added_params_E / host_params))


def current_value(
    now_E: Doubles, snapshot_E: Doubles, paid_E: Doubles, inputs: RewardInputs
) -> Doubles:
    """Value after the step: the snapshot's for members that were rolled back.

    A value that is not finite is replaced by `paid_E`, the last one paid for; the next finite value
    makes up the difference, so that nothing is paid twice.
    """
    reached_E = np.where(inputs.rolled_back_E, snapshot_E, now_E)
    return np.where(np.isfinite(reached_E), reached_E, paid_E)
