"""Splitting of rollouts into padded sequences for a recurrent core.

T steps of M members are split at every state reset into N sequences of at most L steps. The first M
sequences are the first ones of each member and start from the state at the beginning of the
rollout; all others start from the initial state. Padding is at the end of a sequence, so outputs
computed from it are never read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from esper.leyline.arrays import Bools


@dataclass(frozen=True, slots=True, eq=False)
class SequenceSplit:
    """Maps each step of a `[T, M]` rollout to its position in the padded `[L, N]` array."""

    row_TM: Tensor
    """Time index in the sequence."""
    column_TM: Tensor
    """Index of the sequence."""
    length: int
    """L: longest sequence."""
    count: int
    """N: number of sequences."""

    @classmethod
    def at(cls, restart_TM: Bools, device: torch.device) -> SequenceSplit:
        """Split before each step where `restart_TM` is True; step 0 always starts a sequence."""
        steps, members = restart_TM.shape
        cut_TM = restart_TM.copy()
        cut_TM[0] = False
        extra_TM = (
            np.cumsum(cut_TM.T.ravel()).reshape(members, steps).T
        )  # numbered member by member
        part_TM = np.cumsum(cut_TM, axis=0)
        column_TM = np.where(part_TM == 0, np.arange(members), members - 1 + extra_TM)
        time_T1 = np.arange(steps)[:, None]
        begin_TM = np.maximum.accumulate(np.where(cut_TM, time_T1, 0), axis=0)
        row_TM = time_T1 - begin_TM
        row, column = (torch.from_numpy(a.astype(np.int64)).to(device) for a in (row_TM, column_TM))
        return cls(row, column, int(row_TM.max()) + 1, members + int(cut_TM.sum()))

    @property
    def whole(self) -> bool:
        """Whether there is no split: padding is then a no-op."""
        return self.count == self.row_TM.shape[1]

    def pad(self, x_TMD: Tensor) -> Tensor:
        """Scatter `[T, M, D]` into `[L, N, D]`."""
        if self.whole:
            return x_TMD
        padded_LND = x_TMD.new_zeros(self.length, self.count, x_TMD.shape[-1])
        return padded_LND.index_put((self.row_TM, self.column_TM), x_TMD)

    def unpad(self, x_LND: Tensor) -> Tensor:
        """Gather `[L, N, D]` back into `[T, M, D]`."""
        return x_LND if self.whole else x_LND[self.row_TM, self.column_TM]

    def start(self, state_MD: Tensor) -> Tensor:
        """Initial states `[N, D]`: `state_MD` for the first M sequences, 0 after a split."""
        fresh = state_MD.new_zeros(self.count - state_MD.shape[0], state_MD.shape[1])
        return torch.cat([state_MD, fresh])
