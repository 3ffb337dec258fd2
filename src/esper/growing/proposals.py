"""What a search may try next: runs that follow from those that have ended.

Longer runs of the best, with and without regularisers; networks that differ from one of the
frontier in one thing; what length may bring. Which of them a rung holds is the ladder's choice.

A proposal depends only on runs that have ended, so that the same runs lead to the same proposals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from esper.growing.moves import SAME, Space, pick
from esper.growing.networks import Networks
from esper.growing.runs import Origin, Purpose, Recipe, Row, finished, known, out_of_reach
from esper.growing.topologies import Topology
from esper.leyline.streams import stream_seed
from esper.plotting.pareto import pareto, survivors

DIVISORS: Final = {0: 9, 1: 3}
"""Length of a full run over that of a rung's; later ones: 1."""
FULL_RUNG: Final = 2
"""First rung whose runs are full ones."""
MIN_BATCHES: Final = 12
"""Runs are not shorter than this, unless a full one is."""
KEPT: Final = 3
"""One of so many of a rung is trained further in the next."""
BEST: Final = 4
"""Networks whose neighbours are tried most."""
RESTARTS: Final = 8
"""Initialisations of a network, besides the first."""
MAX_RUNS: Final = 48
"""Runs of a rung."""
RESTART_SHARE: Final = 0.2
"""Share of the neighbours that differ only in their initial weights and the order of samples."""
WIDTH_SHARE: Final = 0.15
"""Share that differ in width."""
SEED_SHARE: Final = 0.1
"""Share that differ in a seed module."""
GROWN_SHARE: Final = 0.3
"""Share of those that start from the weights of a finished run."""
LONGER_PAYS: Final = 0.002
"""Gain of the best score, as a share of what was left to gain, for which runs get longer."""


@dataclass(frozen=True, slots=True)
class LadderSettings:
    """What proposals depend on, besides the runs that have ended."""

    space: Space
    """What may be changed in a recipe."""
    longer: int
    """Batches of the usual size that a run may last; the full length: none longer."""
    seed: int
    lower_is_better: bool
    worst: float
    """Score of the best constant prediction, higher being better; NaN: not known."""
    best: float = 1.0
    """Score of perfect outputs, higher being better; NaN: not known."""
    inherit: bool = False
    """Whether runs may start from the weights of others, with a seed more or less."""
    timed: bool = False
    """Whether time is limited: the first run is a short one then."""
    early: bool = False
    """Whether the best of the first rung is trained in full at once."""


class Proposals:
    """Makes rows of runs to come."""

    def __init__(self, settings: LadderSettings, networks: Networks) -> None:
        self.settings, self.networks, self.space = settings, networks, settings.space

    # ---- rows -------------------------------------------------------------------------

    @property
    def full(self) -> int:
        """Batches of a full run, of the usual size."""
        return self.space.recipe.batches

    def _length(self, rung: int) -> int:
        full = self.full
        return min(full, max(MIN_BATCHES, full // DIVISORS.get(rung, 1)))

    def _row(
        self,
        rung: int,
        variant: int,
        topology: Topology,
        recipe: Recipe,
        origin: Origin,
        parent: Row | None = None,
    ) -> Row:
        """A row that is not numbered yet; it has the seed of its parent."""
        return Row(
            number=0,
            rung=rung,
            variant=variant,
            topology=topology,
            recipe=recipe,
            seed=self.settings.seed if parent is None else parent.seed,
            origin=origin,
            parent=None if parent is None else parent.number,
            lower_is_better=self.settings.lower_is_better,
        )

    def _again(self, row: Row, rung: int, length: float) -> Row:
        """The same network by the same recipe, for a length in batches of the usual size."""
        recipe = self.space.lasting(row.recipe, length)
        origin: Origin = "seeds" if row.origin in ("grown", "pruned") else row.origin
        return self._row(rung, row.variant, row.topology, recipe, origin, row)

    def _restarted(self, row: Row, place: int) -> Row:
        """The same with other initial weights and another order of samples."""
        return replace(row, seed=stream_seed(self.settings.seed, "restart", place) % 2**31)

    def sized(self, row: Row) -> Row:
        """The row with the size and the cost of its network."""
        size = self.networks.size(row.variant, row.topology)
        cost = self.networks.cost_of(size, row.recipe.batch_size)
        latency = self.networks.latency(self.networks.variants[row.variant], row.topology)
        return replace(row, params=size.params, macs=size.macs, cost=cost, latency=latency)

    def _fresh(self, wanted: Iterator[Row], rows: Sequence[Row]) -> Iterator[Row]:
        """Those of the wanted rows that are new, within the limits, and not like those that could
        not be trained; with their sizes."""
        seen = {row.key for row in rows}
        repeated = 0
        for row in wanted:
            if row.key not in seen and self.networks.allows(row.variant, row.topology):
                seen.add(row.key)
                sized = self.sized(row)
                if not out_of_reach(sized, rows):
                    repeated = 0
                    yield sized
                    continue
            repeated += 1
            if repeated > 4 * MAX_RUNS:
                return

    def _sound(self, rows: Sequence[Row]) -> list[Row]:
        """Runs that ended, and did not diverge, of networks within the limits of the budget."""
        allows = self.networks.allows
        done = [row for row in finished(rows) if not row.diverged]
        return [row for row in done if allows(row.variant, row.topology)]

    def _near_cap(self, rows: Sequence[Row]) -> list[Row]:
        """Those not far below a cap, if there are any."""
        done = self._sound(rows)
        return [row for row in done if not self._is_far(row)] or done

    def _is_far(self, row: Row) -> bool:
        """Whether a network is far below a cap on its size."""
        budget = self.networks.budget
        caps = (budget.params, row.params), (budget.macs, row.macs)
        return any(cap is not None and size < cap / 2 for cap, size in caps)

    def _front(self, rows: Sequence[Row]) -> list[Row]:
        return [rows[index] for index in pareto(merits(rows), sizes(rows))] if rows else []

    # ---- widths -----------------------------------------------------------------------

    def _widths(self, rung: int) -> Iterator[Row]:
        """The widest network, the model at all rates, as the widest, then widths near the model's.

        Under a cap the widest is often the best.
        """
        space, networks = self.space, self.networks
        recipe = replace(space.recipe, batches=self._length(rung))
        others = range(1, len(networks.variants))
        widest = max(others, key=self._relative, default=0)
        between = [variant for variant in others if variant != widest]
        between.sort(key=lambda variant: abs(math.log(self._relative(variant))))
        middle, *rest = sorted(space.rates, key=lambda rate: (rate != space.recipe.lr, -rate))
        order = [(widest, middle), (0, middle)]
        order += [(variant, rate) for variant in (0, widest) for rate in rest]
        order += [(variant, rate) for rate in (middle, *rest) for variant in between]
        for variant, rate in order:
            bare, origin = networks.variants[variant].bare, origin_of(variant, ())
            yield self._row(rung, variant, bare, replace(recipe, lr=rate), origin)

    def _relative(self, variant: int) -> float:
        base = self.networks.base
        bare = self.networks.variants[variant].bare
        return self.networks.size(variant, bare).params / max(1, base.size(base.bare).params)

    # ---- runs so far ------------------------------------------------------------------

    def _survivors(self, rung: int, rows: Sequence[Row]) -> Iterator[Row]:
        """The best networks of the last rung, for longer; the whole frontier among them."""
        length = self._length(rung - 1)
        same = [row for row in self._sound(rows) if self.space.lasts(row.recipe, length)]
        last = [row for row in same if row.rung == rung - 1]
        if not last:
            return
        keep = max(2, math.ceil(len(last) / KEPT))
        order = survivors(merits(last), sizes(last), max(keep, len(self._front(last))))
        for index in order:
            yield self._again(last[int(index)], rung, self._length(rung))

    def _best(self, rung: int, rows: Sequence[Row]) -> Iterator[Row]:
        """The two best networks so far, for longer."""
        done = sorted(self._sound(rows), key=lambda row: -known(row.merit))
        for row in done[:2]:
            yield self._again(row, rung, self._length(rung))

    def _regularised(self, rung: int, rows: Sequence[Row]) -> Iterator[Row]:
        """The best network so far with every strength of augmentation, and other regularisers."""
        best = max(self._sound(rows), key=lambda row: known(row.merit), default=None)
        if best is not None:
            again = self._again(best, rung, self._length(rung))
            for recipe in self.space.regularised(again.recipe):
                yield replace(again, recipe=recipe)

    def _widest(self, rung: int, rows: Sequence[Row]) -> Iterator[Row]:
        """The largest network, by the best recipe that was found for it."""
        done = self._sound(rows)
        most = max((row.params for row in done), default=0)
        same = [row for row in done if row.params == most]
        for row in sorted(same, key=lambda row: -known(row.merit))[:1]:
            yield self._again(row, rung, self._length(rung))

    def _control(self, rung: int, rows: Sequence[Row]) -> Iterator[Row]:
        """The model as given at the best rate that was found for it."""
        base = [row for row in self._sound(rows) if row.origin == "given"]
        for length in sorted({row.recipe.batches for row in base}):
            same = [row for row in base if row.recipe.batches == length]
            best = max(same, key=lambda row: known(row.merit))
            yield self._again(best, rung, self._length(rung))

    def _unfinished(self, rung: int, rows: Sequence[Row]) -> Iterator[Row]:
        """Networks of shorter runs that are better for their size than all that ran in full."""
        for row in reversed(self._front(self._sound(rows))):
            if self.space.length(row.recipe) < (1.0 - SAME) * self.full:
                yield self._again(row, rung, self.full)

    # ---- longer runs ------------------------------------------------------------------

    def _longer(self, rung: int, rows: Sequence[Row]) -> Iterator[Row]:
        """Three times as long what may overtake the best, then the rest of the frontier."""
        done, space = self._sound(rows), self.space
        longest = max((space.length(row.recipe) for row in done), default=0.0)
        if longest * 3 > self.settings.longer * (1.0 + SAME):
            return
        hopeful = list(self._promising(done))
        if hopeful:
            long = [row for row in done if space.lasts(row.recipe, longest)]
            for row in (*hopeful, *reversed(self._front(long))):
                yield self._again(row, rung, longest * 3)

    def _promising(self, done: Sequence[Row]) -> Iterator[Row]:
        """What may overtake the best if it is trained for longer, the most promising first.

        Each strength of augmentation is judged by what it has gained from length so far; then come
        stronger ones, and other initial weights.
        """
        space = self.space
        longest = max((space.length(row.recipe) for row in done), default=0.0)
        best = max((known(row.merit) for row in done), default=-math.inf)
        hopeful = list[tuple[float, Row]]()
        for strength in range(len(space.augments)):
            same = [row for row in done if space.strength(row.recipe) == strength]
            forecast = self._forecast(same, longest, best)
            if math.isfinite(forecast) and forecast >= best:
                now = [row for row in same if space.lasts(row.recipe, longest)]
                hopeful.append((forecast, max(now, key=lambda row: known(row.merit))))
        order = [row for _, row in sorted(hopeful, key=lambda pair: -pair[0])]
        yield from order
        for row in order:
            yield from (replace(row, recipe=one) for one in space.stronger(row.recipe))
        for row in order:
            yield self._restarted(row, 1)

    def _forecast(self, rows: Sequence[Row], longest: float, best: float) -> float:
        """The best score if length gave as much once more; -inf: it does not pay.

        `best`: of all; what has not been trained for different lengths may reach it.
        """
        space = self.space
        now = [known(row.merit) for row in rows if space.lasts(row.recipe, longest)]
        before = [
            known(row.merit) for row in rows if space.length(row.recipe) < (1 - SAME) * longest
        ]
        if not now or not math.isfinite(max(now)):
            return -math.inf
        if not before:
            return best
        gain, room = max(now) - max(before), self.settings.best - max(before)
        pays = gain > (LONGER_PAYS * room if math.isfinite(room) else 0.0)
        return max(now) + gain if pays else -math.inf

    # ---- neighbours -------------------------------------------------------------------

    def _neighbours(
        self, rung: int, rows: Sequence[Row], generator: np.random.Generator
    ) -> Iterator[Row]:
        """Networks that differ from one of the frontier in rate, width or a seed."""
        done = self._sound(rows)
        front = self._front(done)
        if not front:
            return
        best = sorted(done, key=lambda row: -known(row.merit))[:BEST]
        for parent in reversed(front):
            for recipe in self.space.other_rates(parent.recipe):
                yield self._changed(parent, rung, recipe)
        for _ in range(100 * MAX_RUNS):
            parent = pick(best if generator.random() < 0.7 else front, generator)
            yield from self._neighbour(parent, rung, generator)

    def _length_near(self, parent: Row, rung: int) -> float:
        """The length of a neighbour of a row: after the first full rung as long as that one."""
        return self._length(rung) if rung <= FULL_RUNG else self.space.length(parent.recipe)

    def _neighbour(self, parent: Row, rung: int, generator: np.random.Generator) -> Iterator[Row]:
        """A network that differs from another in one thing."""
        drawn, length = generator.random(), self._length_near(parent, rung)
        if drawn < RESTART_SHARE:
            again = self._again(parent, rung, length)
            yield self._restarted(again, 1 + int(generator.integers(RESTARTS)))
        elif drawn < RESTART_SHARE + WIDTH_SHARE:
            yield from self._other_widths(parent, rung, length, generator)
        elif drawn < RESTART_SHARE + WIDTH_SHARE + SEED_SHARE:
            yield from self._other_seeds(parent, rung, length, generator)
        else:
            recipe = self.space.near(parent.recipe, generator)
            if recipe is not None:
                yield self._changed(parent, rung, recipe)

    def _changed(self, parent: Row, rung: int, recipe: Recipe) -> Row:
        """The network of a row by another recipe."""
        return self._again(replace(parent, recipe=recipe), rung, self._length_near(parent, rung))

    def _other_widths(
        self, parent: Row, rung: int, length: float, generator: np.random.Generator
    ) -> Iterator[Row]:
        order = sorted(range(len(self.networks.variants)), key=self._relative)
        place = order.index(parent.variant) + (1 if generator.random() < 0.5 else -1)
        variant = order[max(0, min(len(order) - 1, place))]
        if variant == parent.variant:
            return
        held = self.networks.variants[variant]
        topology = parent.topology if held.holds(parent.topology) else held.bare
        recipe = self.space.lasting(parent.recipe, length)
        yield self._row(rung, variant, topology, recipe, origin_of(variant, topology), parent)

    def _other_seeds(
        self, parent: Row, rung: int, length: float, generator: np.random.Generator
    ) -> Iterator[Row]:
        near = self.networks.variants[parent.variant].neighbours(parent.topology)
        if not near:
            return
        topology = pick(near, generator)
        recipe = self.space.lasting(parent.recipe, length)
        drawn = generator.random() < GROWN_SHARE
        grows = drawn and self.settings.inherit and parent.saved
        more = sum(map(bool, topology)) > sum(map(bool, parent.topology))
        origin: Origin = origin_of(parent.variant, topology)
        if grows:
            origin = "grown" if more else "pruned"
        row = self._row(rung, parent.variant, topology, recipe, origin, parent)
        yield replace(row, start=parent.number if grows else None)


def purposed(purpose: Purpose, rows: Iterable[Row]) -> Iterator[Row]:
    """Rows that say why they are proposed."""
    return (replace(row, purpose=purpose) for row in rows)


def origin_of(variant: int, topology: Topology) -> Origin:
    """How a network that starts from weights of its own came about."""
    if any(topology):
        return "seeds"
    return "width" if variant else "given"


def merits(rows: Sequence[Row]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Their scores, higher being better."""
    return np.array([row.merit for row in rows], dtype=np.float64)


def sizes(rows: Sequence[Row]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Their parameters."""
    return np.array([float(row.params) for row in rows], dtype=np.float64)
