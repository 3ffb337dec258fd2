"""What all families answer: how far has a member come, and what is each of its seeds worth?

A family measures, a mode pays: `contribution.py` and `loss.py` are the families, the other modules
the modes. All parts of a reward that depend on a seed go through `worth_ES`.

Shape letters: E members, S slots.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

import numpy as np

from esper.leyline.arrays import Bools, Doubles
from esper.leyline.rewards import RewardInputs
from esper.leyline.stages import OCCUPIED_STAGES, SeedStage
from esper.simic.rewards.memory import Remembers

OCCUPIED: Final[Bools] = np.array([stage in OCCUPIED_STAGES for stage in SeedStage])
"""By stage: a seed stands there."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a step has brought, in units of accuracy (0..1)."""

    score_E: Doubles
    """Where the member stands, the price of growth taken off."""
    score_change_E: Doubles
    merit_change_E: Doubles
    """Change of what it can do, whatever it has grown for it."""
    worth_ES: Doubles
    """What each seed that stands is worth now; 0 where none does, or none is measured."""


class Family(Remembers, ABC):
    """One way to measure progress."""

    @abstractmethod
    def measure(self, inputs: RewardInputs) -> Progress:
        """The step's progress; once a step, `begin` before the first of an episode."""


def growth(added_params_E: Doubles, host_params: int) -> Doubles:
    """Doublings `[E]` of the host's parameters by what was added to them."""
    return np.asarray(np.log2(1.0 + added_params_E / host_params))


def settled(now_E: Doubles, snapshot_E: Doubles, paid_E: Doubles, inputs: RewardInputs) -> Doubles:
    """What a value that has been paid up to `paid_E` has come to.

    A member that was set back stands where its snapshot stood. A value that is not finite changes
    nothing: the next one that is settles the rest, so in sum nothing is paid twice.
    """
    reached_E = np.where(inputs.rolled_back_E, snapshot_E, now_E)
    return np.where(np.isfinite(reached_E), reached_E, paid_E)
