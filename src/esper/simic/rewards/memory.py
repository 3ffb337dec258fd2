"""Per-episode state of rewards: arrays over members, saved and loaded by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from esper.leyline.errors import EsperError
from esper.leyline.rewards import RewardInputs

State = dict[str, npt.NDArray[Any]]
"""Copies of the arrays by name; empty before the first episode."""


class EpisodeMemory:
    """Holds the arrays named in `ARRAYS` as attributes; `begin` resets them."""

    ARRAYS: ClassVar[tuple[str, ...]] = ()

    def begin(self, inputs: RewardInputs) -> None:
        """Start an episode of `inputs.members` members."""

    def state(self) -> State:
        """Copies of the arrays, to resume in the middle of an episode."""
        return {name: getattr(self, name).copy() for name in self.ARRAYS if hasattr(self, name)}

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore `state`; raises for one of another kind of reward."""
        require_arrays(type(self).__name__, state, self.ARRAYS)
        for name in state:
            setattr(self, name, np.array(state[name]))


def require_arrays(
    kind: str, state: Mapping[str, npt.NDArray[Any]], expected: tuple[str, ...]
) -> None:
    """Raise unless `state` is empty or holds exactly the `expected` arrays, of equal length."""
    if state and set(state) != set(expected):
        raise EsperError(
            f"state of {kind} has {', '.join(sorted(state))}; expected "
            f"{', '.join(sorted(expected)) or 'nothing'}: resume with the same reward mode and "
            f"family"
        )
    sizes = {name: value.shape[:1] for name, value in state.items() if value.ndim}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} {size[0]}" for name, size in sorted(sizes.items()))
        raise EsperError(f"state of {kind} has different numbers of members: {listed}")
