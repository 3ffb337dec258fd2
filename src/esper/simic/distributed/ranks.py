"""`Ranks`: what the learner asks of the processes that train one controller together.

`SINGLE_PROCESS` is a run of one process: every method returns its argument. `World`
(`world.py`) overrides them by collectives over the processes of a `torchrun` job. The learner
itself is the same.

Shape letters: E members of this rank, U members of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from esper.leyline.arrays import Doubles, Ints

T = TypeVar("T")
ArrayT = TypeVar("ArrayT", bound=npt.NDArray[Any])


class Ranks:
    """One process that trains all members; the base of those that train together."""

    rank: int = 0
    """Number of this process, from 0."""
    size: int = 1
    """Number of processes."""
    local_size: int = 1
    """Number of processes on this machine."""
    first_member: int = 0
    """Number of this rank's first member among the members of all ranks."""

    def numbers(self, members: int) -> Ints:
        """Numbers of this rank's members among those of all ranks."""
        return np.arange(self.first_member, self.first_member + members, dtype=np.int64)

    def share_members(self, total: int) -> int:
        """Take a share of the members of the run; returns its size."""
        return total

    def device_of(self, device: str) -> str:
        """This rank's device, given the run's."""
        return device

    def together(self, work: Callable[[], T]) -> T:
        """Run `work` on every rank; if it fails on one, all ranks raise."""
        return work()

    def gather(self, x: ArrayT) -> ArrayT:
        """Concatenate arrays of all ranks along the first axis, in rank order."""
        return x

    def add_(self, x: Tensor) -> Tensor:
        """Replace a tensor by its sum over ranks."""
        return x

    def maximum_(self, x: Tensor) -> Tensor:
        """Replace a tensor by its maximum over ranks."""
        return x

    def add_gradients_(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace gradients by their sums over ranks."""


SINGLE_PROCESS: Final = Ranks()
"""A run of one process."""


@dataclass(frozen=True, slots=True)
class _Moments:
    """Mean and spread of the values of all ranks."""

    mean: float
    variance: float
    deviation: float


def moments(x: Doubles, ranks: Ranks) -> _Moments:
    """Moments of all values of all ranks; zeros if there is none."""
    mine = _Moments(0.0, 0.0, 0.0)
    if x.size:
        mine = _Moments(float(x.mean()), float(np.var(x)), float(x.std()))
    if ranks.size == 1:
        return mine
    row_R3 = ranks.gather(np.array([[x.size, mine.mean, mine.variance]]))
    count_R, mean_R, variance_R = row_R3.T
    total = count_R.sum()
    if not total:
        return mine
    mean = float((count_R * mean_R).sum() / total)
    variance = float((count_R * (variance_R + (mean_R - mean) ** 2)).sum() / total)
    return _Moments(mean, variance, variance**0.5)
