"""How rollouts become sequences for a recurrent core: cut where the state was reset, padded.

T steps of M members are cut behind every terminal into N sequences of at most L steps. The first M
sequences are the members' first ones, which go on from the state the rollout began with; all others
begin from the initial state. Padding comes after a sequence's end, so nothing it leads to is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from esper.leyline.arrays import Bools


@dataclass(frozen=True, slots=True, eq=False)
class SequenceSplit:
    """Where each step of `[T, M]` lies in the padded `[L, N]`."""

    row_TM: Tensor
    column_TM: Tensor
    length: int
    """L."""
    count: int
    """N."""

    @classmethod
    def at(cls, restart_TM: Bools, device: torch.device) -> SequenceSplit:
        """Cut before each step at which the state was reset; row 0 is a start in any case."""
        steps, members = restart_TM.shape
        cut_TM = restart_TM.copy()
        cut_TM[0] = False
        extra_TM = np.cumsum(cut_TM.T.ravel()).reshape(members, steps).T  # counted member by member
        part_TM = np.cumsum(cut_TM, axis=0)
        column_TM = np.where(part_TM == 0, np.arange(members), members - 1 + extra_TM)
        time_T1 = np.arange(steps)[:, None]
        begin_TM = np.maximum.accumulate(np.where(cut_TM, time_T1, 0), axis=0)
        row_TM = time_T1 - begin_TM
        row, column = (torch.from_numpy(a.astype(np.int64)).to(device) for a in (row_TM, column_TM))
        return cls(row, column, int(row_TM.max()) + 1, members + int(cut_TM.sum()))

    @property
    def whole(self) -> bool:
        """Nothing is cut: the padded array is the rollout itself."""
        return self.count == self.row_TM.shape[1]

    def pad(self, x_TMD: Tensor) -> Tensor:
        """`[T, M, D]` to `[L, N, D]`."""
        if self.whole:
            return x_TMD
        padded_LND = x_TMD.new_zeros(self.length, self.count, x_TMD.shape[-1])
        return padded_LND.index_put((self.row_TM, self.column_TM), x_TMD)

    def unpad(self, x_LND: Tensor) -> Tensor:
        """`[L, N, D]` back to `[T, M, D]`."""
        return x_LND if self.whole else x_LND[self.row_TM, self.column_TM]

    def start(self, state_MD: Tensor) -> Tensor:
        """States `[N, D]` the sequences begin with: carried into the rollout, or 0 after a cut."""
        fresh = state_MD.new_zeros(self.count - state_MD.shape[0], state_MD.shape[1])
        return torch.cat([state_MD, fresh])
