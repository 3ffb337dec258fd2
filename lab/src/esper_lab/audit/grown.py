"""Policy that grows a topology of its own in every member, instead of planting it.

Shape letters: E members, S slots, N entries of the schedule.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from esper.growing.topologies import Topology
from esper.leyline.arrays import Bools
from esper.tamiyo.schedule import FixedSchedule, ScheduleConfig, ScheduleEntry

GERMINATE_AT: Final = 1
"""Step of the first germination; one slot follows per step."""
_NEVER: Final = 10**9
"""Steps on probation: seeds are kept, whatever they contribute."""


class GrownTopologies(FixedSchedule):
    """Germinates the seeds of each member's topology, blends and keeps them.

    The schedule has an entry for every seed of any member; in a member, those that are not its own
    count as done from the start.
    """

    def __init__(self, topologies: list[Topology], slots: tuple[str, ...]) -> None:
        """`topologies`: one per member; `slots`: ids of the slots."""
        seeds = sorted(
            {(s, name) for topology in topologies for s, name in enumerate(topology) if name}
        )
        entries = (ScheduleEntry(GERMINATE_AT, slots[s], name) for s, name in seeds)
        super().__init__(ScheduleConfig(tuple(entries), probation_steps=_NEVER))
        self._done_EN: Bools = np.array(
            [[topology[s] != name for s, name in seeds] for topology in topologies], dtype=np.bool_
        ).reshape(len(topologies), len(seeds))

    def initial_state(self, members: int) -> Bools:
        """Return `done_EN`: what a member does not grow is done."""
        return self._done_EN.copy()

    def reset_state(self, policy_state: Bools, reset_E: Bools) -> Bools:
        """Grow the topology of the reset members again."""
        return np.where(reset_E[:, None], self._done_EN, policy_state)
