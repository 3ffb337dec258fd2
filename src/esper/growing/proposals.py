"""Which candidates a bracket starts with.

The first bracket finds learning rates: the model as it is at every one, its other widths at two.
Later ones add seeds: what pruning and growth have found, planted from the start; once, one
blueprint in every slot; neighbours of the networks on the frontier; and random topologies of all
sizes. They train at the rate of the network on the frontier that is nearest in size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

import numpy as np

from esper.growing.frontier import pareto
from esper.growing.records import GROWN_ORIGINS, Candidate, Origin
from esper.growing.topologies import Topology
from esper.growing.variants import Variant
from esper.leyline.streams import stream_seed

UNIFORM_SHARE: Final = 0.4
"""Share of uniform topologies in the first bracket with seeds, as long as there are some."""
WIDEST: Final = 3
"""Widest variants that uniform topologies are tried in, besides the model as given."""
RANDOM_SHARE: Final = 0.25
"""Share of later brackets that is drawn at random."""
BEST_SHARE: Final = 0.5
"""Share of neighbours that are those of the best network; the others' parents are drawn from the
whole frontier."""
OTHER_HOST: Final = 0.3
"""Share of neighbours that are the next width of a variant."""
OTHER_RATE: Final = 0.2
"""Share of neighbours that differ in the learning rate alone."""
TRIES: Final = 50
"""Known candidates in a row after which there seem to be no new ones."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate to be."""

    host: int
    topology: Topology
    rate: float
    origin: Origin
    parent: int | None = None


class Proposer:
    """Draws the candidates of one bracket."""

    def __init__(
        self,
        variants: Sequence[Variant],
        rates: Sequence[float],
        known: Sequence[Candidate],
        bracket: int,
        seed: int,
    ) -> None:
        self.variants, self.rates, self.known = variants, rates, known
        self.generator = np.random.default_rng(stream_seed(seed, "grow", "bracket", bracket))

    def propose(self, count: int, at_random: bool = False) -> list[Proposal]:
        """Up to `count` proposals, none of them tried before.

        `at_random`: whatever the brackets before have found, but for the controls of the first.
        """
        if self.known:
            source = self._random(count) if at_random else self._later(count)
        else:
            source = chain(self._controls(), self._random(count) if at_random else self._widths())
        found: dict[tuple[int, Topology, float], Proposal] = {}
        tried = {c.key for c in self.known if c.origin not in GROWN_ORIGINS}
        repeated = 0
        for proposal in source:
            key = proposal.host, proposal.topology, proposal.rate
            allowed = self.variants[proposal.host].space.allows(proposal.topology)
            if key in tried or key in found or not allowed:
                repeated += 1
                if repeated > TRIES:
                    break
                continue
            found[key], repeated = proposal, 0
            if len(found) == count:
                break
        return list(found.values())

    def _pick(self, count: int) -> int:
        return int(self.generator.integers(count))

    def _rate(self) -> float:
        return self.rates[self._pick(len(self.rates))]

    def _controls(self) -> Iterator[Proposal]:
        for rate in self.rates:
            yield Proposal(0, self.variants[0].space.bare, rate, "host")

    def _widths(self) -> Iterator[Proposal]:
        middle = self.rates[len(self.rates) // 2]
        for host in self._widest(len(self.variants)):
            for rate in dict.fromkeys((middle, max(self.rates))):
                yield Proposal(host, self.variants[host].space.bare, rate, "host")

    def _random(self, count: int) -> Iterator[Proposal]:
        """Random topologies without end, their sizes spread over the range of each variant."""
        strata = max(1, count)
        while True:
            for stratum in self.generator.permutation(strata):
                host = self._pick(len(self.variants))
                space = self.variants[host].space
                share = (stratum + self.generator.random()) / strata
                topology = space.drawn(share, self.generator)
                origin: Origin = "planted" if any(topology) else "host"
                yield Proposal(host, topology, self._rate(), origin)

    def _later(self, count: int) -> Iterator[Proposal]:
        finished = [candidate for candidate in self.known if candidate.finished]
        score_N = np.array([candidate.merit for candidate in finished])
        size_N = np.array([float(candidate.params) for candidate in finished])
        front = [finished[index] for index in pareto(score_N, size_N)]
        for one in reversed(front):
            if one.origin in GROWN_ORIGINS:
                yield Proposal(one.host, one.topology, one.rate, "refit", one.number)
        planted = any(candidate.origin == "planted" for candidate in self.known)
        uniform = [] if planted else self._uniform(max(1, count // 4))
        drawn = self._random(count)
        while True:
            if uniform and self.generator.random() < UNIFORM_SHARE:
                yield self._at_good_rate(uniform.pop(), front)
            elif not front or self.generator.random() < RANDOM_SHARE:
                yield self._at_good_rate(next(drawn), front)
            else:
                best = self.generator.random() < BEST_SHARE
                yield self._neighbour(front[-1] if best else front[self._pick(len(front))])

    def _uniform(self, count: int) -> list[Proposal]:
        """One blueprint in every slot, in the widest variants or the model as given."""
        found = [
            Proposal(host, topology, self._rate(), "planted")
            for host in dict.fromkeys((0, *self._widest(WIDEST)))
            for topology in self.variants[host].space.uniform()
        ]
        return [found[index] for index in self.generator.permutation(len(found))[:count]]

    def _at_good_rate(self, one: Proposal, front: Sequence[Candidate]) -> Proposal:
        """The proposal at the rate of the network on the frontier that is nearest in size."""
        if not front:
            return one
        size = self.variants[one.host].size(one.topology).params
        near = min(front, key=lambda other: abs(math.log(other.params / max(1, size))))
        return replace(one, rate=near.rate)

    def _neighbour(self, parent: Candidate) -> Proposal:
        """A candidate that differs from another in its width, its rate or one slot."""
        number, kind = parent.number, self.generator.random()
        if kind < OTHER_HOST and len(self.variants) > 1:
            host = self._next_host(parent.host)
            space = self.variants[host].space
            seeds = parent.topology if space.holds(parent.topology) else space.bare
            origin: Origin = "planted" if any(seeds) else "host"
            return Proposal(host, seeds, parent.rate, origin, number)
        near = self.variants[parent.host].space.neighbours(parent.topology)
        if kind < OTHER_HOST + OTHER_RATE or not near:
            origin = "planted" if any(parent.topology) else "host"
            return Proposal(parent.host, parent.topology, self._rate(), origin, number)
        topology = near[self._pick(len(near))]
        origin = "planted" if any(topology) else "host"
        return Proposal(parent.host, topology, parent.rate, origin, number)

    def _widest(self, count: int) -> list[int]:
        sizes = [variant.space.costs.host_params for variant in self.variants]
        return sorted(range(len(sizes)), key=lambda host: -sizes[host])[:count]

    def _next_host(self, host: int) -> int:
        """The variant that is one size smaller or larger."""
        sizes = [variant.space.costs.host_params for variant in self.variants]
        order = sorted(range(len(sizes)), key=sizes.__getitem__)
        place = order.index(host) + (1 if self.generator.random() < 0.5 else -1)
        return order[max(0, min(len(order) - 1, place))]
