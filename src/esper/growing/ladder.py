"""The ladder: which runs a search makes next, from those that have ended.

Every run is a complete one with a schedule of its own, so nothing is ranked half way, and the best
so far is always a finished network. The rungs:

    0   the user's model, in full; beside it the model and its other widths at several rates, a
        ninth as long
    1   the better third of these, neighbours of the best, seeds; a third of the length
    2   the model at its best rate, the better third, neighbours of the best, in full
    3.. the frontier three times as long, where length pays, or more neighbours in full

Proposals depend on runs that have ended alone, so that the same runs lead to the same proposals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

import numpy as np

from esper.growing.networks import Networks
from esper.growing.runs import Origin, Recipe, Row, Table, finished, known
from esper.growing.settings import Policy
from esper.growing.topologies import EMPTY, Topology
from esper.leyline.streams import stream_seed
from esper.plotting.pareto import hypervolume, pareto, survivors

SHARES: Final = {0: 0.15, 1: 0.25, 2: 0.7}
"""Share of what is left of the budget that a rung may spend; later ones: all of it."""
DIVISORS: Final = {0: 9, 1: 3}
"""Length of a full run over that of a rung's; later ones: 1."""
FULL_RUNG: Final = 2
"""First rung whose runs are full ones."""
MIN_BATCHES: Final = 12
"""Runs are not shorter than this, unless a full one is."""
KEPT: Final = 3
"""One of so many of a rung is trained further in the next."""
MAX_SHARE: Final = 0.65
"""A run may cost this share of what is left of the budget when it is trained in full."""
MAX_RUNS: Final = 48
"""Runs of a rung."""
MAX_REFUSED: Final = 8
"""Proposals in a row that are too dear, after which a rung is full."""
RATE_STEP: Final = 3.0
"""Ratio of neighbouring learning rates."""
RATE_LIMITS: Final = (1e-6, 1.0)
SEED_SHARE: Final = 0.25
"""Share of the neighbours that differ in a seed, where other widths can be made."""
GROWN_SHARE: Final = 0.3
"""Share of those that start from the weights of a finished run."""
LONGER_PAYS: Final = 0.002
"""Gain of the best score, as a share of what was left to gain, for which runs get longer."""
PATIENCE: Final = 2
"""Full rungs without progress after which a search ends."""
PROGRESS: Final = 1e-3
"""Least relative growth of the frontier's hypervolume that counts as progress."""


@dataclass(frozen=True, slots=True)
class LadderSettings:
    """What proposals depend on, besides the runs that have ended."""

    recipe: Recipe
    """Of a full run at the middle rate."""
    rates: tuple[float, ...]
    """Learning rates to try first."""
    more_rates: bool
    """Whether others may be tried, because the user named none."""
    longer: int
    """Batches that a run may be made as long as; the full length: none longer."""
    seed: int
    lower_is_better: bool
    worst: float
    """Score of the best constant prediction, higher being better; NaN: not known."""
    best: float = 1.0
    """Score of perfect outputs, higher being better; NaN: not known."""
    policy: Policy = "ladder"


Affordable = Callable[[Row], float]
"""What a run costs, in the unit of the budget."""


class Ladder:
    """Proposes the runs of the next rung."""

    def __init__(self, settings: LadderSettings, networks: Networks) -> None:
        self.settings, self.networks = settings, networks

    def first(self) -> Row:
        """The model as given, in full."""
        return self._row(0, 0, 0, self.networks.base.bare, self.settings.recipe, "given")

    def beside_first(self, table: Table, left: float, cost: Affordable) -> list[Row]:
        """The other rows of the first rung, which depend on no result.

        `left`: what is left of the budget; `cost`: of a run, in the same unit.
        """
        wanted = self._fresh(self._proposals(0, table.rows), table.rows)
        share = 1.0 if self.settings.policy == "random" else SHARES[0]
        return _numbered(self._affordable(wanted, cost, left, share * left), table)

    def next_rung(self, table: Table, left: float, cost: Affordable) -> tuple[list[Row], str]:
        """The rows of the next rung that the budget pays for; none: why the search is over."""
        rows = table.rows
        rung = table.rungs if len(rows) > 1 else 0
        if rung > FULL_RUNG and self._stalled(rows) >= PATIENCE:
            return [], f"nothing improved in {PATIENCE} rungs"
        if not rung:
            chosen = self.beside_first(table, left, cost)
        else:
            wanted = self._fresh(self._proposals(rung, rows), rows)
            share = 1.0 if self.settings.policy == "random" else SHARES.get(rung, 1.0)
            chosen = self._affordable(wanted, cost, left, share * left)
        if not chosen and rung <= FULL_RUNG:
            # Too little for a choice among short runs: fewer networks, in full.
            fresh = self._fresh(self._in_full(rung, rows), rows)
            chosen = self._affordable(fresh, cost, left, left)
        reason = "" if chosen else "the budget is spent, or nothing new is left to try"
        return _numbered(chosen, table), reason

    def meanwhile(self, table: Table) -> Iterator[Row]:
        """Further rows of the last rung, for processes that would wait for its longest run."""
        rung = table.rungs - 1
        earlier = [row for row in table.rows if row.rung < rung]
        if rung or self.settings.policy == "random":
            yield from self._fresh(
                self._neighbours(rung, earlier, self._generator(rung)), table.rows
            )
        else:
            yield from self._fresh(self._widths(0), table.rows)

    def _affordable(
        self, fresh: Iterator[Row], cost: Affordable, left: float, most: float
    ) -> list[Row]:
        """The first rows that cost no more than `most` together.

        None may cost more than a share of what is left when it is trained in full.
        """
        spent, too_dear, chosen = 0.0, 0, list[Row]()
        for row in fresh:
            price = cost(row)
            in_full = price * self._full(row) / row.recipe.batches
            if spent + price > most * (1 + 1e-9) or in_full > max(MAX_SHARE * left, price):
                too_dear += 1
                if too_dear == MAX_REFUSED:
                    break
                continue
            too_dear, spent = 0, spent + price
            chosen.append(row)
            if len(chosen) == MAX_RUNS:
                break
        return chosen

    def _in_full(self, rung: int, rows: Sequence[Row]) -> Iterator[Row]:
        """The proposals of a rung, then neighbours, each for the length of a full run."""
        near = self._neighbours(rung, rows, self._generator(rung))
        for row in chain(self._proposals(rung, rows), near):
            recipe = replace(row.recipe, batches=self._full(row))
            yield replace(row, rung=max(1, rung), recipe=recipe)

    def filling(self, table: Table, batches: Callable[[Row], int], count: int) -> list[Row]:
        """Runs of the best networks that fit into what is left of the time.

        `batches`: how many a network can be trained on; `count`: runs at a time.
        """
        rows, full = table.rows, self.settings.recipe.batches
        done = [row for row in finished(rows) if not row.diverged and row.start is None]
        found = list[Row]()
        for row in sorted(done, key=lambda one: -known(one.merit)):
            length = min(self.settings.longer, batches(row))
            if length < full // DIVISORS[1] or len(found) == count:
                continue
            again = self._again(row, table.rungs, length)
            if again.key not in {other.key for other in (*rows, *found)}:
                found.append(replace(self.sized(again), number=len(rows) + len(found)))
        return found

    def _full(self, row: Row) -> int:
        return max(self.settings.recipe.batches, row.recipe.batches)

    # ---- proposals ------------------------------------------------------------------------

    def _proposals(self, rung: int, rows: Sequence[Row]) -> Iterator[Row]:
        generator = self._generator(rung)
        if self.settings.policy == "random":
            return self._random(rung, generator)
        if rung == 0:
            return self._widths(rung)
        if rung < FULL_RUNG:
            return chain(self._survivors(rung, rows), self._neighbours(rung, rows, generator))
        if rung == FULL_RUNG:
            near = self._neighbours(rung, rows, generator)
            return chain(self._control(rung, rows), self._survivors(rung, rows), near)
        longer = self._longer(rung, rows)
        near = self._neighbours(rung, rows, generator)
        return chain(self._unfinished(rung, rows), longer, near)

    def _generator(self, rung: int) -> np.random.Generator:
        return np.random.default_rng(stream_seed(self.settings.seed, "ladder", rung))

    def _length(self, rung: int) -> int:
        full = self.settings.recipe.batches
        return min(full, max(MIN_BATCHES, full // DIVISORS.get(rung, 1)))

    def _widths(self, rung: int) -> Iterator[Row]:
        """The model at other rates, then other widths: the widest, then those near its own size.

        Under a cap the widest is often the best.
        """
        settings, networks = self.settings, self.networks
        recipe = replace(settings.recipe, batches=self._length(rung))
        for rate in settings.rates:
            yield self._row(rung, 0, 0, networks.base.bare, replace(recipe, lr=rate), "given")
        others = range(1, len(networks.variants))
        widest = max(others, key=self._relative, default=0)
        order = sorted(others, key=lambda v: (v != widest, abs(math.log(self._relative(v)))))
        middle = settings.recipe.lr
        for rate in sorted(settings.rates, key=lambda rate: (rate != middle, -rate)):
            for variant in order:
                bare = networks.variants[variant].bare
                yield self._row(rung, 0, variant, bare, replace(recipe, lr=rate), "width")

    def _relative(self, variant: int) -> float:
        base = self.networks.base
        bare = self.networks.variants[variant].bare
        return self.networks.size(variant, bare).params / max(1, base.size(base.bare).params)

    def _survivors(self, rung: int, rows: Sequence[Row]) -> Iterator[Row]:
        """The best networks of the last rung, for longer; the whole frontier among them."""
        length = self._length(rung - 1)
        same = [row for row in finished(rows) if row.recipe.batches == length]
        last = [row for row in same if row.rung == rung - 1 and not row.diverged]
        if not last:
            return
        keep = max(2, math.ceil(len(last) / KEPT))
        order = survivors(_merits(last), _sizes(last), max(keep, len(self._front(last))))
        for index in order:
            yield self._again(last[int(index)], rung, self._length(rung))

    def _control(self, rung: int, rows: Sequence[Row]) -> Iterator[Row]:
        """The model as given at the best rate that was found for it."""
        base = [r for r in finished(rows) if r.origin == "given" and not r.diverged]
        for length in sorted({row.recipe.batches for row in base}):
            same = [row for row in base if row.recipe.batches == length]
            best = max(same, key=lambda row: known(row.merit))
            yield self._again(best, rung, self._length(rung))

    def _unfinished(self, rung: int, rows: Sequence[Row]) -> Iterator[Row]:
        """Networks of shorter runs that are better for their size than all that ran in full."""
        full = self.settings.recipe.batches
        front = self._front([row for row in finished(rows) if not row.diverged])
        for row in reversed(front):
            if row.recipe.batches < full:
                yield self._again(row, rung, full)

    def _longer(self, rung: int, rows: Sequence[Row]) -> Iterator[Row]:
        """The frontier for three times as long, if length has paid so far."""
        done = [row for row in finished(rows) if not row.diverged]
        longest = max((row.recipe.batches for row in done), default=0)
        if longest * 3 > self.settings.longer or not self._length_pays(done, longest):
            return
        front = self._front([row for row in done if row.recipe.batches == longest])
        for row in reversed(front):
            yield self._again(row, rung, longest * 3)

    def _again(self, row: Row, rung: int, batches: int) -> Row:
        """The same network and recipe, for a number of batches, from its own start."""
        recipe = replace(row.recipe, batches=batches)
        origin: Origin = "seeds" if row.origin in ("grown", "pruned") else row.origin
        return self._row(rung, 0, row.variant, row.topology, recipe, origin, row.number)

    def _front(self, rows: Sequence[Row]) -> list[Row]:
        return [rows[index] for index in pareto(_merits(rows), _sizes(rows))] if rows else []

    # ---- neighbours -----------------------------------------------------------------------

    def _neighbours(
        self, rung: int, rows: Sequence[Row], generator: np.random.Generator
    ) -> Iterator[Row]:
        """Networks that differ from one of the frontier in rate, width or a seed."""
        done = [row for row in finished(rows) if not row.diverged]
        front = self._front(done)
        if not front:
            return
        length = self._length(rung)
        for parent in reversed(front):
            yield from self._other_rates(parent, rung, length)
        for _ in range(100 * MAX_RUNS):
            parent = front[-1] if generator.random() < 0.5 else _pick(front, generator)
            several = len(self.networks.variants) > 1
            if generator.random() < (SEED_SHARE if several else 1.0):
                yield from self._other_seeds(parent, rung, length, generator)
            elif generator.random() < 0.5:
                yield from self._other_rates(parent, rung, length)
            else:
                yield from self._other_widths(parent, rung, length, generator)

    def _other_rates(self, parent: Row, rung: int, length: int) -> Iterator[Row]:
        steps = (RATE_STEP, 1.0 / RATE_STEP) if self.settings.more_rates else ()
        origin: Origin = parent.origin if parent.start is None else "seeds"
        low, high = RATE_LIMITS
        for rate in (*(parent.recipe.lr * step for step in steps), *self.settings.rates):
            lr = self._known_rate(rate)
            if low <= lr <= high and lr != parent.recipe.lr:
                near = replace(parent.recipe, batches=length, lr=lr)
                yield self._row(
                    rung, 0, parent.variant, parent.topology, near, origin, parent.number
                )

    def _known_rate(self, rate: float) -> float:
        """The rate, or one of the first that is as good as the same."""
        first = (one for one in self.settings.rates if math.isclose(one, rate, rel_tol=1e-2))
        return next(first, float(f"{rate:.4g}"))

    def _other_widths(
        self, parent: Row, rung: int, length: int, generator: np.random.Generator
    ) -> Iterator[Row]:
        order = sorted(range(len(self.networks.variants)), key=self._relative)
        place = order.index(parent.variant) + (1 if generator.random() < 0.5 else -1)
        variant = order[max(0, min(len(order) - 1, place))]
        if variant == parent.variant:
            return
        held = self.networks.variants[variant]
        topology = parent.topology if held.holds(parent.topology) else held.bare
        recipe = replace(parent.recipe, batches=length)
        origin = _origin(variant, topology)
        yield self._row(rung, 0, variant, topology, recipe, origin, parent.number)

    def _other_seeds(
        self, parent: Row, rung: int, length: int, generator: np.random.Generator
    ) -> Iterator[Row]:
        near = self.networks.variants[parent.variant].neighbours(parent.topology)
        if not near:
            yield from self._other_rates(parent, rung, length)
            return
        topology = near[int(generator.integers(len(near)))]
        recipe = replace(parent.recipe, batches=length)
        grows = generator.random() < GROWN_SHARE and parent.saved
        if not grows:
            origin = _origin(parent.variant, topology)
            yield self._row(rung, 0, parent.variant, topology, recipe, origin, parent.number)
            return
        more = sum(map(bool, topology)) > sum(map(bool, parent.topology))
        row = self._row(
            rung, 0, parent.variant, topology, recipe, "grown" if more else "pruned", parent.number
        )
        yield replace(row, start=parent.number)

    # ---- at random ------------------------------------------------------------------------

    def _random(self, rung: int, generator: np.random.Generator) -> Iterator[Row]:
        """Any network at any rate, in full."""
        networks = self.networks
        for _ in range(100 * MAX_RUNS):
            variant = int(generator.integers(len(networks.variants)))
            held = networks.variants[variant]
            topology = held.bare
            for slot in range(len(topology)):
                if generator.random() < 1.0 / (1 + len(topology)):
                    options = (EMPTY, *held.options(slot))
                    name = options[int(generator.integers(len(options)))]
                    topology = (*topology[:slot], name, *topology[slot + 1 :])
            rates = self.settings.rates
            rate = rates[int(generator.integers(len(rates)))]
            recipe = replace(self.settings.recipe, lr=rate)
            yield self._row(rung, 0, variant, topology, recipe, _origin(variant, topology))

    # ---- rows -----------------------------------------------------------------------------

    def _row(
        self,
        rung: int,
        number: int,
        variant: int,
        topology: Topology,
        recipe: Recipe,
        origin: Origin,
        parent: int | None = None,
    ) -> Row:
        return Row(
            number=number,
            rung=rung,
            variant=variant,
            topology=topology,
            recipe=recipe,
            seed=self.settings.seed,
            origin=origin,
            parent=parent,
            start=None,
            params=0,
            macs=0,
            cost=math.nan,
            lower_is_better=self.settings.lower_is_better,
        )

    def _fresh(self, wanted: Iterator[Row], rows: Sequence[Row]) -> Iterator[Row]:
        """Those of the wanted rows that are new and within the limits, with their sizes."""
        seen = {row.key for row in rows}
        repeated = 0
        for row in wanted:
            allowed = row.key not in seen and self.networks.allows(row.variant, row.topology)
            if not allowed:
                repeated += 1
                if repeated > 4 * MAX_RUNS:
                    return
                continue
            seen.add(row.key)
            repeated = 0
            yield self.sized(row)

    def sized(self, row: Row) -> Row:
        """The row with the size and the cost of its network."""
        size = self.networks.size(row.variant, row.topology)
        cost = self.networks.cost(row.variant, row.topology)
        return replace(row, params=size.params, macs=size.macs, cost=cost)

    # ---- progress -------------------------------------------------------------------------

    def _length_pays(self, done: Sequence[Row], longest: int) -> bool:
        """Whether the best of the longest runs is better than the best of the shorter ones."""
        shorter = [known(row.merit) for row in done if row.recipe.batches < longest]
        now = max(known(row.merit) for row in done if row.recipe.batches == longest)
        if not shorter or not math.isfinite(now):
            return math.isfinite(now)
        gain, room = now - max(shorter), self.settings.best - max(shorter)
        return gain > (LONGER_PAYS * room if math.isfinite(room) else 0.0)

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
        done = [row for row in finished(rows) if not row.diverged]
        some = [row for row in done if row.rung <= rung]
        if not some:
            return 0.0
        least, most = float(_sizes(done).min()), float(_sizes(done).max())
        worst = self.settings.worst
        worst = float(_merits(done).min()) if math.isnan(worst) else worst
        worst = min(worst, 0.99)
        return hypervolume(_merits(some), _sizes(some), 2.0 * most, least, worst)


def _numbered(rows: Sequence[Row], table: Table) -> list[Row]:
    """Rows with the next numbers of a table."""
    return [replace(row, number=len(table.rows) + place) for place, row in enumerate(rows)]


def _pick(rows: Sequence[Row], generator: np.random.Generator) -> Row:
    return rows[int(generator.integers(len(rows)))]


def _origin(variant: int, topology: Topology) -> Origin:
    if any(topology):
        return "seeds"
    return "width" if variant else "given"


def _merits(rows: Sequence[Row]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([row.merit for row in rows], dtype=np.float64)


def _sizes(rows: Sequence[Row]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([float(row.params) for row in rows], dtype=np.float64)
