"""What a reward remembers of an episode: arrays over members, saved and loaded by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from esper.leyline.errors import EsperError
from esper.leyline.rewards import RewardInputs

State = dict[str, npt.NDArray[Any]]
"""Copies of the arrays by name; empty before the first episode."""


class Remembers:
    """Keeps the arrays named in `ARRAYS` as attributes; `begin` makes them anew."""

    ARRAYS: ClassVar[tuple[str, ...]] = ()

    def begin(self, inputs: RewardInputs) -> None:
        """Start an episode of `inputs.members` members."""

    def state(self) -> State:
        """All it takes to go on in the middle of an episode."""
        return {name: getattr(self, name).copy() for name in self.ARRAYS if hasattr(self, name)}

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on where `state` was taken; one of another kind of reward is refused."""
        refuse_other(type(self).__name__, state, self.ARRAYS)
        for name in state:
            setattr(self, name, np.array(state[name]))


def refuse_other(
    kind: str, state: Mapping[str, npt.NDArray[Any]], expected: tuple[str, ...]
) -> None:
    """Refuse a state that is neither empty nor made of exactly the `expected` arrays."""
    if state and set(state) != set(expected):
        raise EsperError(
            f"state of {kind} has {', '.join(sorted(state))}; expected "
            f"{', '.join(sorted(expected)) or 'nothing'}: resume with the same reward mode and "
            f"family"
        )
    sizes = {name: value.shape[:1] for name, value in state.items() if value.ndim}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} {size[0]}" for name, size in sorted(sizes.items()))
        raise EsperError(f"state of {kind} is of different numbers of members: {listed}")
