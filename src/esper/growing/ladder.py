"""The ladder: which runs a search makes next, from those that have ended.

Every run is a complete one with a schedule of its own, so nothing is ranked half way, and the best
so far is always a finished network. The rungs:

    0   the user's model and its other widths at several rates, a ninth as long as a full run;
        without a limit on time the model in full as well
    1   the better third of these, the best with augmentation and other regularisers, neighbours;
        a third of the length; before them, where others can wait for it, the best in full
    2   the best, also at every strength of augmentation, the model at its best rate, the widest
        network, the better third, neighbours of the best; in full
    3.. three times as long what has gained from length, or more neighbours of the best

Under a limit on time what has gained from length gets the rest of it, more than half, in one last
long run each: the finale, which comes at once where there is no time for many full runs.

Augmentation pays in long runs, and often looks harmful in short ones: each strength goes on to a
longer run as long as it gains enough from length to overtake the best.

Proposals depend only on runs that have ended, so that the same runs lead to the same proposals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Final

import numpy as np

from esper.growing.moves import SAME
from esper.growing.proposals import (
    DIVISORS,
    FULL_RUNG,
    MAX_RUNS,
    Proposals,
    merits,
    origin_of,
    purposed,
    sizes,
)
from esper.growing.runs import Row, Table, finished, known
from esper.growing.topologies import Topology
from esper.leyline.streams import stream_seed
from esper.plotting.pareto import hypervolume

SHARES: Final = {0: 0.1, 1: 0.15, 2: 0.3}
"""Share of what is left of the budget that a rung may spend; later ones: all of it."""
MAX_SHARE: Final = 0.65
"""A run may cost this share of what is left of the budget when it is trained in full."""
MAX_REFUSED: Final = 8
"""Proposals in a row that are too dear, after which a rung is full."""
FAR_SHARE: Final = 0.5
"""Of a rung's share, what networks far below a cap on their size may take."""
AUGMENTED_EPOCHS: Final = 12
"""From so many epochs on augmentation is thought to pay, if it was not tried."""
MIN_LONGER: Final = 1.5
"""Times as long as all before that the finale is, at least."""
SMALLER_SHARE: Final = 0.125
"""Share of the finale that smaller networks get beside its runs."""
LEFT_SHARE: Final = 0.15
"""Share that a lone last run leaves them, for after it."""
MAX_REFERENCE: Final = 0.5
"""Share of that time that the model as given may take."""
MAX_SMALLER: Final = 4
"""How many, at most, each half as large as the next."""
PATIENCE: Final = 2
"""Full rungs without progress after which a search ends."""
PROGRESS: Final = 1e-3
"""Least relative growth of the frontier's hypervolume that counts as progress."""

Affordable = Callable[[Row], float]
"""What a run costs, in the unit of the budget."""


class Ladder(Proposals):
    """Proposes the runs of the next rung."""

    def first(self) -> Row:
        """The model as given; in full, if time is not limited, or it is only the reference."""
        competes = self.networks.allows(0, self.networks.base.bare)
        short = self.settings.timed and competes
        return self._model(self._length(0) if short else self.full)

    def in_full(self, table: Table) -> Row:
        """A full run of the best network so far, of those near a cap."""
        best = max(self._near_cap(table.rows), key=lambda row: known(row.merit), default=None)
        return self.sized(self._model(self.full) if best is None else
                          self._again(best, table.rungs, self.full))  # fmt: skip

    def least_run(self) -> Row:
        """The shortest run of the model for which there has to be time, as for other networks."""
        return self.sized(self._model(self._needed))

    @property
    def _needed(self) -> int:
        """Batches of a run that every network is to be worth: under a limit on time a third of a
        full one, as the finale takes what is left."""
        return self._length(1) if self.settings.timed else self.full

    def _model(self, length: int) -> Row:
        recipe = replace(self.space.recipe, batches=length)
        row = self._row(0, 0, self.networks.base.bare, recipe, "given")
        return replace(row, purpose="first")

    def beside_first(self, table: Table, left: float, cost: Affordable) -> list[Row]:
        """The other rows of the first rung, which depend on no result.

        `left`: what is left of the budget; `cost`: of a run, in the same unit.
        """
        return numbered(self._rung(0, table.rows, left, cost), table)

    def next_rung(
        self, table: Table, left: float, cost: Affordable, least: int = 1
    ) -> tuple[list[Row], str]:
        """The rows of the next rung that the budget pays for; none: why the search is over.

        `least`: runs that train at a time: a rung has as many, whatever its share of the budget.
        """
        rows = table.rows
        rung = table.rungs if len(rows) > 1 else 0
        if rung > FULL_RUNG and self._stalled(rows) >= PATIENCE:
            return [], f"nothing improved in {PATIENCE} rungs"
        chosen = self._rung(rung, rows, left, cost, least if rung else 0)
        if not chosen and rung <= FULL_RUNG:
            # Too little for a choice among short runs: fewer networks, in full.
            fresh = self._fresh(self._in_full(rung, rows), rows)
            chosen = self._affordable(fresh, cost, left, left)
        reason = "" if chosen else "the budget is spent, or nothing new is left to try"
        return numbered(chosen, table), reason

    def _rung(
        self, rung: int, rows: Sequence[Row], left: float, cost: Affordable, least: int = 0
    ) -> list[Row]:
        """What a rung proposes, as far as its share of the budget pays for it."""
        wanted = self._fresh(self._proposals(rung, rows), rows)
        return self._affordable(wanted, cost, left, SHARES.get(rung, 1.0) * left, least)

    def meanwhile(self, table: Table) -> Iterator[Row]:
        """Further rows of the last rung, for processes that would wait for its longest run."""
        rung = table.rungs - 1
        earlier = [row for row in table.rows if row.rung < rung]
        if rung:
            near = self._neighbours(rung, earlier, self._generator(rung))
            yield from self._fresh(purposed("neighbour", near), table.rows)
        else:
            longer = (replace(row, rung=0) for row in self._widths(1))
            widths = purposed("opening", chain(self._widths(0), longer))
            yield from self._fresh(widths, table.rows)

    def _affordable(
        self, fresh: Iterator[Row], cost: Affordable, left: float, most: float, least: int = 0
    ) -> list[Row]:
        """The first rows that cost no more than `most` together; the first of all, than is left.

        In the first rung none may cost more than a share of what is left when it is trained for as
        long as it has to be.
        """
        spent, far, too_dear, chosen = 0.0, 0.0, 0, list[Row]()
        for row in fresh:
            price = cost(row)
            in_full = price * max(1.0, self._needed / self.space.length(row.recipe))
            distant = price if chosen and self._is_far(row) else 0.0
            within = left if len(chosen) < least else most
            if (
                spent + price > within * (1 + 1e-9)
                or far + distant > FAR_SHARE * most
                or (not row.rung and in_full > max(MAX_SHARE * left, price))
            ):
                too_dear += 1
                if too_dear == MAX_REFUSED:
                    break
                continue
            too_dear, spent, far = 0, spent + price, far + distant
            chosen.append(row)
            if len(chosen) == MAX_RUNS:
                break
        return chosen

    def _in_full(self, rung: int, rows: Sequence[Row]) -> Iterator[Row]:
        """The proposals of a rung, then neighbours, each for the length of a full run."""
        near = purposed("neighbour", self._neighbours(rung, rows, self._generator(rung)))
        for row in chain(self._proposals(rung, rows), near):
            length = max(self.full, self.space.length(row.recipe))
            yield replace(row, rung=max(1, rung), recipe=self.space.lasting(row.recipe, length))

    # ---- the rest of the time ---------------------------------------------------------

    def filling(self, table: Table, batches: Callable[[Row], int], count: int) -> list[Row]:
        """Runs of the best networks that fit into what is left of the time.

        They last a third of a full run at least, or as long as the network has been trained so far:
        the last seconds are enough for a small one. `batches`: how many a network can be trained
        on; `count`: runs at a time.
        """
        rows, space = table.rows, self.space
        done = [row for row in finished(rows) if not row.diverged and row.start is None]
        lasted = dict[tuple[int, Topology], float]()
        for row in done:
            network = row.variant, row.topology
            lasted[network] = max(lasted.get(network, 0.0), space.length(row.recipe))
        found = list[Row]()
        for row in sorted(done, key=lambda one: -known(one.merit)):
            length = min(self.settings.longer, space.usual(row.recipe, batches(row)))
            least = min(self.full / DIVISORS[1], lasted[row.variant, row.topology])
            if length < least or len(found) == count:
                continue
            again = self._again(row, table.rungs, length)
            if again.key not in {other.key for other in (*rows, *found)}:
                found.append(replace(self.sized(again), number=len(rows) + len(found)))
        return list(purposed("filling", found))

    def finale(
        self,
        table: Table,
        batches: Callable[[Row], int],
        count: int,
        cores: int = 0,
    ) -> list[Row]:
        """What may be the best in the end, in runs for the rest of the time.

        None, if length does not pay, or there is no time for longer runs than before.
        `batches`, `count`: as for `filling`; `cores`: of a lone one; 0: one.
        """
        rows, space, rung = table.rows, self.space, table.rungs
        near = [replace(row, threads=cores) for row in self._near_cap(rows)]
        longest = max((space.length(row.recipe) for row in near), default=0.0)
        lasting = (self._lasting(row, rung, batches) for row in self._candidates(near, batches))
        long = (row for row in lasting if space.length(row.recipe) >= MIN_LONGER * longest)
        found = list(islice(self._fresh(purposed("finale", long), rows), count))
        if found and count == 1:
            found = self._with_room(found, LEFT_SHARE, batches)
        elif found:
            smaller = self._smaller(rung, rows, found, batches, SMALLER_SHARE * len(found))
            reference = self._reference(rung, rows)
            chosen = chain(purposed("smaller", smaller), purposed("reference", reference))
            beside = list(self._fresh(chosen, rows))
            found = [*self._with_room(found, _parts(beside, batches), batches), *beside]
        return numbered(list(self._fresh(iter(found), rows)), table)

    def after_finale(self, table: Table, batches: Callable[[Row], int], count: int) -> list[Row]:
        """What a lone last run leaves time for: the model as given, and smaller networks.

        After it, for its own length would suffer where the time is not what was predicted.
        `batches`, `count`: as for `filling`.
        """
        rows, rung = table.rows, table.rungs
        last = [row for row in rows if row.rung == rung - 1]
        if [row.purpose for row in last] != ["finale"]:
            return []
        wanted = purposed("reference", self._reference(rung, rows))
        reference = list(self._fresh(wanted, rows))
        part = _parts(reference, batches)
        if part > MAX_REFERENCE * count:
            reference, part = [], 0.0
        smaller = self._smaller(rung, rows, last, batches, count - part, count)
        found = chain(reference, self._fresh(purposed("smaller", smaller), rows))
        return numbered(list(found), table)

    def _lasting(self, row: Row, rung: int, batches: Callable[[Row], int]) -> Row:
        """A row again, for all of the time that is left."""
        length = min(self.settings.longer, self.space.usual(row.recipe, batches(row)))
        return replace(self._again(row, rung, length), threads=row.threads)

    def _with_room(self, found: list[Row], part: float, batches: Callable[[Row], int]) -> list[Row]:
        """Runs of the finale, the last one shorter by a part of the time."""
        last = found[-1]
        fewer = max(1, min(last.recipe.batches, round((1.0 - part) * batches(last))))
        return [*found[:-1], replace(last, recipe=replace(last.recipe, batches=fewer))]

    def _smaller(
        self,
        rung: int,
        rows: Sequence[Row],
        found: Sequence[Row],
        batches: Callable[[Row], int],
        part: float,
        lanes: int = 1,
    ) -> list[Row]:
        """The best networks of half the size, of a quarter and so on, for longer than before: a
        frontier has all sizes.

        They share a part of the time of one run equally; those that had the most so far get none,
        if there would be too little for all. `found`: the long runs; `lanes`: of the smaller ones,
        as many train at a time.
        """
        done, size, space = self._sound(rows), found[0].params, self.space
        halves = (size / 2 ** (place + 1) for place in range(MAX_SMALLER))
        sized = [self._of_size(rung, done, half / 2, half) for half in halves]
        some = [row for row in sized if row is not None]
        some.sort(key=lambda row: space.length(row.recipe))
        longest = max(space.length(row.recipe) for row in found)
        for count in range(len(some), 0, -1):
            share = part / lanes / math.ceil(count / lanes)  # whole runs in every lane
            longer = [
                min(longest, space.usual(row.recipe, round(share * batches(row))))
                for row in some[:count]
            ]
            pairs = list(zip(some, longer, strict=False))
            if all(length >= MIN_LONGER * space.length(row.recipe) for row, length in pairs):
                return [replace(row, recipe=space.lasting(row.recipe, n)) for row, n in pairs]
        return []

    def _of_size(self, rung: int, done: Sequence[Row], least: float, most: float) -> Row | None:
        """The best network of some size so far; if none was trained, one by the recipe of the
        nearest; None: there is none."""
        tried = [row for row in done if least < row.params <= most]
        if tried:
            best = max(tried, key=lambda row: known(row.merit))
            return self.sized(self._again(best, rung, self.space.length(best.recipe)))
        networks = self.networks
        for variant, held in enumerate(networks.variants):
            params = networks.size(variant, held.bare).params
            if least < params <= most:
                near = min(done, key=lambda row: abs(math.log(row.params / params)))
                recipe = replace(near.recipe, batches=1)
                origin = origin_of(variant, ())
                return self.sized(self._row(rung, variant, held.bare, recipe, origin, near))
        return None

    def _candidates(self, near: Sequence[Row], batches: Callable[[Row], int]) -> Iterator[Row]:
        """What is promising; where augmentation was not tried, in long runs the weaker ones."""
        space, tried = self.space, {self.space.strength(row.recipe) for row in near}
        for row in self._promising(near):
            length = space.usual(row.recipe, batches(row))
            if tried == {0} and length >= AUGMENTED_EPOCHS * space.epoch:
                for name in space.augments[1:3]:
                    yield replace(row, recipe=replace(row.recipe, augment=name))
                tried = set()
            yield row

    def _reference(self, rung: int, rows: Sequence[Row]) -> Iterator[Row]:
        """The model as given for a third of a full run, if it was not trained for as long yet."""
        base = [row for row in self._sound(rows) if row.origin == "given"]
        length = self._length(1)
        if base and all(self.space.length(row.recipe) < (1 - SAME) * length for row in base):
            *_, best = self._control(rung, rows)
            yield self._again(best, rung, length)

    # ---- rungs ------------------------------------------------------------------------

    def _proposals(self, rung: int, rows: Sequence[Row]) -> Iterator[Row]:
        generator = self._generator(rung)
        if rung == 0:
            return purposed("opening", self._widths(rung))
        near = purposed("neighbour", self._neighbours(rung, rows, generator))
        survivors = purposed("survivor", self._survivors(rung, rows))
        regularised = purposed("regularised", self._regularised(rung, rows))
        if rung < FULL_RUNG:
            early = purposed("best", self._early(rung, rows) if self.settings.early else ())
            return chain(early, survivors, regularised, near)
        if rung == FULL_RUNG:
            return chain(
                purposed("best", self._best(rung, rows)),
                regularised,
                purposed("control", self._control(rung, rows)),
                purposed("widest", self._widest(rung, rows)),
                survivors,
                near,
            )
        longer = purposed("longer", self._longer(rung, rows))
        return chain(longer, purposed("unfinished", self._unfinished(rung, rows)), near)

    def _early(self, rung: int, rows: Sequence[Row]) -> Iterator[Row]:
        """The best network near a cap in full, also with the weakest augmentation."""
        best = max(self._near_cap(rows), key=lambda row: known(row.merit), default=None)
        if best is not None:
            again = self._again(best, rung, self.full)
            yield again
            yield from (replace(again, recipe=one) for one in self.space.stronger(again.recipe))

    def _generator(self, rung: int) -> np.random.Generator:
        return np.random.default_rng(stream_seed(self.settings.seed, "ladder", rung))

    # ---- progress ---------------------------------------------------------------------

    def _stalled(self, rows: Sequence[Row]) -> int:
        """Full rungs in a row, up to the last, that have not improved the frontier."""
        last, stalled = max(row.rung for row in rows), 0
        while last - stalled > FULL_RUNG:
            before = self._volume(rows, last - stalled - 1)
            if self._volume(rows, last - stalled) > before * (1.0 + PROGRESS):
                break
            stalled += 1
        return stalled

    def _volume(self, rows: Sequence[Row], rung: int) -> float:
        """Hypervolume of the runs that have ended, up to a rung."""
        done = self._sound(rows)
        some = [row for row in done if row.rung <= rung]
        if not some:
            return 0.0
        least, most = float(sizes(done).min()), float(sizes(done).max())
        worst = self.settings.worst
        worst = float(merits(done).min()) if math.isnan(worst) else worst
        worst = min(worst, 0.99)
        return hypervolume(merits(some), sizes(some), 2.0 * most, least, worst)


def _parts(rows: Sequence[Row], batches: Callable[[Row], int]) -> float:
    """Parts of the time that runs take, together."""
    return sum(row.recipe.batches / max(1, batches(row)) for row in rows)


def numbered(rows: Sequence[Row], table: Table) -> list[Row]:
    """Rows with the next numbers of a table."""
    return [replace(row, number=len(table.rows) + place) for place, row in enumerate(rows)]
