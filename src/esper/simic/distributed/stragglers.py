"""`StragglerRule`: which rollouts end early because the ranks would wait for them.

Once a share of the ranks has finished its rollout, the others end theirs before their next step
(the rule of DD-PPO). Each rank asks for the number of finished ranks at every step; nobody waits
for an answer of another rank, so a dead one delays nobody here.
"""

from __future__ import annotations

import math
from typing import Final

from esper.simic.distributed.world import World

SHORTEST: Final = 0.25
"""Part of a rollout that every rank completes: from fewer steps there is little to learn."""


class StragglerRule:
    """Counts the ranks that have finished their rollout."""

    def __init__(self, world: World, share: float, steps: int) -> None:
        """`share`: of the ranks that must have finished; `steps`: of a whole rollout."""
        self.needed = max(1, math.ceil(round(share * world.size, 6)))
        """Ranks whose end cuts the others."""
        self.shortest = math.ceil(SHORTEST * steps)
        self._finished = world.shared_count()
        self._before, self._size = 0, world.size

    def ends_early(self, steps_done: int) -> bool:
        """Whether this rank's rollout ends here."""
        if steps_done < self.shortest:
            return False
        return self._finished.value() - self._before >= self.needed

    def finish(self) -> None:
        """This rank has its rollout; call once a round, before the ranks meet."""
        self._finished.add(1)
        self._before += self._size
