"""Time of a search: how long a run will take, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from esper.growing.runs import Row
from esper.growing.trainers.job import Outcome

NARROWEST: Final = 0.5
"""A network that was not timed takes at least this share of the time of the nearest that was."""
ENOUGH: Final = 0.9
"""A run starts if at least this share of the seconds that it should take is left."""
REPORT_SECONDS: Final = 1.0
"""Kept for the report, with the next."""
REPORT_SHARE: Final = 0.01
"""Of the time limit."""
MAX_FASTER: Final = 2.0
"""Times as fast that networks are judged at the end than beside others, at most."""
SPARE: Final = 2
"""Networks that may have to be judged at the end, besides those that would be now."""
AUGMENTED: Final = 1.1
"""Times as long that a network is thought to take with an augmentation that was not timed."""


def kind_of(row: Row) -> tuple[object, ...]:
    """What the speed of a run depends on."""
    recipe = row.recipe
    return row.variant, row.topology, recipe.batch_size, row.threads, recipe.augment


class Clock:
    """Seconds since the call, and what is known of the speed of networks."""

    def __init__(
        self,
        now: Callable[[], float],
        began: float,
        limit: float,
        earlier: float,
        share: float,
    ) -> None:
        """`began`: when the call began; `limit`: seconds of the whole; `earlier`: spent by earlier
        sessions; `share`: samples of test over those of validation.
        """
        self._now, self._began, self.limit, self._earlier = now, began, limit, earlier
        self._share = share
        self._speeds: dict[tuple[object, ...], tuple[float, float]] = {}
        """(variant, topology, batch size, threads, augmentation) -> (cost, its share of the seconds
        of a batch)."""
        self._timed: dict[tuple[object, ...], float] = {}
        """Of those that were timed for what they are to train in next: seconds of a batch."""
        self._judging: list[float] = []
        self.judged = 1
        """Networks that would be judged on test now."""
        self._unshared = 0.0
        """Seconds of a batch of the model as given, if nothing else trains."""
        self._ended: list[tuple[Row, float, float]] = []
        """Runs of the rung under way: their seconds in all, and of a batch; 0: urgent, so that
        it says nothing about others."""
        self._started: dict[int, tuple[float, float]] = {}
        """Runs under way -> when they began, their shares of the time."""
        self.parallel = 1.0
        """Runs that train at a time, about."""
        self.reserved = 0.0
        """Seconds that are kept for what is trained after the search."""

    @property
    def seconds(self) -> float:
        """Time spent, earlier sessions included."""
        return self._earlier + self._now() - self._began

    @property
    def left(self) -> float:
        """Seconds until training has to end; infinite without a limit."""
        if math.isinf(self.limit):
            return math.inf
        judging = self.judging or 0.0
        judging /= max(1.0, min(self.parallel, MAX_FASTER))  # nothing trains beside it at the end
        report = REPORT_SECONDS + REPORT_SHARE * self.limit
        report += (self.judged + SPARE) * judging * self._share
        return self.limit - self.seconds - min(report, 0.2 * self.limit) - self.reserved

    @property
    def judging(self) -> float | None:
        """Seconds that it takes to judge a network on validation; None: not known yet."""
        return sorted(self._judging)[len(self._judging) // 2] if self._judging else None

    # ---- what is known of the speed -------------------------------------------------------

    def begin(self, first: Row, each: float, parallel: int) -> None:
        """Before the search: seconds of a batch of the model as given, by a probe.

        parallel: runs that are to train at a time without slowing each other.
        """
        self._unshared, self.parallel = each, float(parallel)
        self.learn_speed(first, each / parallel)

    def start(self, row: Row) -> None:
        """A run starts."""
        self._started[row.number] = self.seconds, self.share(row)

    def learn(self, row: Row, outcome: Outcome, trained: int, urgent: bool = False) -> None:
        """Note how long a run took; `trained`: its batches in this session; `urgent`: others
        waited for it."""
        self._started.pop(row.number, None)
        self._judging.append(outcome.judging)
        if trained > 0:
            each = outcome.seconds / outcome.trained
            self._ended.append((row, trained * each, 0.0 if urgent else each))

    def give_up(self, row: Row) -> None:
        """A run cannot be trained: it takes no more time."""
        self._started.pop(row.number, None)

    def end_rung(self, seconds: float) -> None:
        """The runs that ended have shared so many seconds."""
        ended, self._ended = self._ended, []
        self._started.clear()
        if not ended or seconds <= 0:
            return
        self.parallel = max(1.0, sum(spent for _, spent, _ in ended) / seconds)
        for row, _, each in ended:
            if each:
                self.learn_speed(row, each / self.parallel)

    def learn_speed(self, row: Row, each: float) -> None:
        """Note the seconds of a batch of a network."""
        self._speeds[kind_of(row)] = row.cost, each

    def time(self, row: Row, each: float, count: int) -> None:
        """Note the seconds of a batch of a network beside as many others as it is to train with.

        `count`: runs, it included.
        """
        self._timed[kind_of(row)] = each
        self.learn_speed(row, each / count)

    def is_timed(self, row: Row) -> bool:
        """Whether it was timed for what it is to train in."""
        return kind_of(row) in self._timed

    # ---- predictions ----------------------------------------------------------------------

    def batch_seconds(self, row: Row) -> float:
        """A network's share of the seconds of a batch, from the nearest that was timed."""
        if not self._speeds:
            return 0.0
        exact = self._speeds.get(kind_of(row))
        if exact is not None:
            return exact[1]
        same = [each for kind, (_, each) in self._speeds.items() if kind[:-1] == kind_of(row)[:-1]]
        if same:
            return AUGMENTED * max(same)
        near, each = min(self._speeds.values(), key=lambda pair: abs(pair[0] - row.cost))
        return each * max(row.cost / max(near, 1e-9), NARROWEST)

    def share(self, row: Row) -> float:
        """Seconds of the search that a run takes, as others train at the same time."""
        return self.batch_seconds(row) * (row.recipe.batches - row.trained)

    def predict(self, row: Row) -> float:
        """Seconds until a run that starts now, and shares the device with none, has ended.

        If it was timed: beside those that it was timed with.
        """
        each = self._timed.get(kind_of(row))
        if each is not None:
            return each * (row.recipe.batches - row.trained)
        return self.share(row) * (1.0 if row.threads else self._slower)

    def whole_run(self, row: Row) -> float:
        """Seconds of a whole run that shares the device with none."""
        return self._slower * self.batch_seconds(row) * row.recipe.batches

    @property
    def _slower(self) -> float:
        """Seconds of a run that trains by itself over its share of the search's."""
        shared = next((each for (variant, *_), (_, each) in self._speeds.items() if not variant), 0)
        return max(1.0, self._unshared / shared) if shared else 1.0

    def beside(self, row: Row) -> float:
        """Seconds until a run that starts now, beside as many others as before, has ended."""
        return self.parallel * self.share(row)

    def fits(self, row: Row) -> bool:
        """Whether a run that starts now ends in time, with those under way."""
        if math.isinf(self.limit):
            return True
        now = self.seconds
        under_way = (
            max(0.0, share - (now - began) / self.parallel)
            for began, share in self._started.values()
        )
        together = sum(under_way) + self.share(row)
        return ENOUGH * max(together, self.predict(row)) <= self.left

    def most_cost(self, first: Row, share: float) -> float:
        """The cost of the dearest network whose run takes a share of what is left of the time.

        `first`: a run of the model as given.
        """
        full = self.whole_run(first)
        return share * self.left / full if full else math.inf
