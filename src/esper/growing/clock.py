"""Time of a search: how long a run will take, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from esper.growing.runs import Row
from esper.growing.trainers.job import Outcome

NARROWEST: Final = 0.5
"""A network that was not timed takes at least this share of the time of the nearest that was."""
SPEED: Final = {"cpu": 5e9, "cuda": 2e12}
"""Multiply-accumulates of a second at least, where they dominate; small networks take their time
for other things, so that twice the compute does not take twice the time."""
MARGIN: Final = 0.9
"""A run starts if this share of the time it should take is left."""
RESERVE: Final = 1.0
"""Seconds that are kept for the report."""
RESERVED: Final = 0.01
"""Share of the time that is kept besides."""
JUDGED: Final = 10
"""Networks that may have to be judged at the end."""


class Clock:
    """Seconds since the call, and what is known of the speed of networks."""

    def __init__(
        self,
        now: Callable[[], float],
        began: float,
        limit: float,
        earlier: float,
        share: float,
        unit: float,
    ) -> None:
        """`began`: when the call began; `limit`: seconds of the whole; `earlier`: spent by earlier
        sessions; `share`: samples of test over those of validation; `unit`: most seconds that the
        compute of a batch of the model as given takes.
        """
        self._now, self._began, self.limit, self._earlier = now, began, limit, earlier
        self._share, self._unit = share, unit
        self._speeds: dict[tuple[int, object], tuple[float, float]] = {}
        """(variant, topology) -> (cost, seconds of a batch)."""
        self._judging = 0.0
        self.parallel = 1.0
        """Runs that train at a time, about."""

    @property
    def seconds(self) -> float:
        """Time spent, earlier sessions included."""
        return self._earlier + self._now() - self._began

    @property
    def left(self) -> float:
        """Seconds until training has to end; infinite without a limit."""
        if math.isinf(self.limit):
            return math.inf
        reserve = RESERVE + RESERVED * self.limit + JUDGED * self._judging * self._share
        return self.limit - self.seconds - min(reserve, 0.2 * self.limit)

    def learn(self, row: Row, outcome: Outcome, trained: int) -> None:
        """Note how long a run took; `trained`: its batches in this session."""
        self._judging = max(self._judging, outcome.judging)
        if trained:
            each = outcome.seconds / max(1, outcome.trained)
            self._speeds[row.variant, row.topology] = row.cost, each

    def learn_speed(self, row: Row, each: float) -> None:
        """Note the seconds of a batch of a network."""
        self._speeds[row.variant, row.topology] = row.cost, each

    def batch_seconds(self, row: Row) -> float:
        """Seconds of a batch of a network, from the nearest that was timed."""
        if not self._speeds:
            return 0.0
        exact = self._speeds.get((row.variant, row.topology))
        if exact is not None:
            return exact[1]
        near, each = min(self._speeds.values(), key=lambda pair: abs(pair[0] - row.cost))
        unit = min(self._unit, each / max(near, 1e-9))
        return max(each + (row.cost - near) * unit, NARROWEST * each)

    def predict(self, row: Row) -> float:
        """Seconds until a run that starts now has ended."""
        return self.batch_seconds(row) * (row.recipe.batches - row.trained)

    def share(self, row: Row) -> float:
        """Seconds of the search that a run takes: others train at the same time."""
        return self.predict(row) / self.parallel

    def fits(self, row: Row) -> bool:
        """Whether a run that starts now ends in time."""
        return math.isinf(self.limit) or MARGIN * self.predict(row) <= self.left

    def most_cost(self, first: Row, share: float) -> float:
        """The cost of the dearest network whose run takes a share of what is left of the time.

        `first`: a run of the model as given.
        """
        if math.isinf(self.limit) or not self._unit:
            return math.inf
        each = self.batch_seconds(first)
        unit = min(self._unit, each)
        return 1.0 + (share * self.left / first.recipe.batches - each) / max(unit, 1e-12)
