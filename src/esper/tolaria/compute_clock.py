"""The compute clock: every member spends the same compute, in equal shares per step.

A step grants each member `batches_per_step * budget` batches of the host. A member whose
network costs c times as much trains on 1/c as many; what is left over is carried to the next step.

Shape letters: E members.
"""

from __future__ import annotations

import numpy as np

from esper.leyline.arrays import Bools, Doubles, Ints
from esper.leyline.errors import EsperError

_ROUNDING = 1e-9
"""Tolerance, in batches, for sums of fractions that should be whole."""


class ComputeClock:
    """Counts compute in batches of the host."""

    def __init__(self, members: int, batches_per_step: int, steps: int) -> None:
        self.batches_per_step, self.steps = batches_per_step, steps
        self.budget = 1.0
        """In training runs of the host: `batches_per_step * steps` batches each."""
        self.trained_E: Ints = np.zeros(members, dtype=np.int64)
        """Batches trained on in this episode."""
        self.spent_E: Doubles = np.zeros(members)
        """Compute spent in this episode."""
        self._balance_E: Doubles = np.zeros(members)
        """Granted and not spent."""

    def reset(self, budget: float) -> None:
        """Start an episode with a budget; raises if it does not pay for one batch."""
        if budget * self.batches_per_step * self.steps < 1:
            least = 1 / (self.batches_per_step * self.steps)
            raise EsperError(
                f"compute budget {budget:g}: less than one batch of the host; set it to "
                f"{least:.3g} host runs or more"
            )
        self.budget = budget
        for values in (self.trained_E, self.spent_E, self._balance_E):
            values.fill(0)

    def advance(self, cost_E: Doubles, stopped_E: Bools) -> Ints:
        """Grant a step; return the batches `[E]` each member trains on at these costs."""
        self._balance_E += np.where(stopped_E, 0.0, self.batches_per_step * self.budget)
        affordable_E = np.floor(self._balance_E / cost_E + _ROUNDING)
        batches_E = np.where(stopped_E, 0, affordable_E).astype(np.int64)
        self._balance_E -= batches_E * cost_E
        self.spent_E += batches_E * cost_E
        self.trained_E += batches_E
        return batches_E

    @property
    def runs_E(self) -> Doubles:
        """Compute spent, in training runs of the host."""
        return self.spent_E / (self.batches_per_step * self.steps)

    @property
    def share_E(self) -> Doubles:
        """Share of the budget spent."""
        return np.minimum(self.runs_E / self.budget, 1.0)
