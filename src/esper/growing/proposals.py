"""Which candidates a bracket starts with.

The first bracket: the model as it is at every learning rate, one blueprint in every slot, and
random topologies of all sizes. Later ones: what pruning and growth have found, planted from the
start; neighbours of the networks on the frontier; and a few random ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from esper.growing.frontier import pareto
from esper.growing.records import GROWN_ORIGINS, Candidate, Origin
from esper.growing.topologies import Topology, TopologySpace
from esper.leyline.streams import stream_seed

RANDOM_SHARE: Final = 0.25
"""Share of later brackets that is drawn at random."""
TRIES: Final = 50
"""Known topologies in a row after which there seem to be no new ones."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate to be."""

    topology: Topology
    rate: float
    origin: Origin
    parent: int | None = None


def propose(
    space: TopologySpace,
    rates: Sequence[float],
    known: Sequence[Candidate],
    bracket: int,
    count: int,
    seed: int,
    at_random: bool = False,
) -> list[Proposal]:
    """Up to `count` proposals for a bracket, none of them tried before.

    `at_random`: later brackets are drawn like the random part of the first one.
    """
    generator = np.random.default_rng(stream_seed(seed, "grow", "bracket", bracket))
    source = _first(space, rates, count, generator)
    if known and at_random:
        source = _random(space, rates, max(1, count), generator)
    elif known:
        source = _later(space, rates, known, count, generator)
    found: dict[tuple[Topology, float], Proposal] = {}
    tried = {candidate.key for candidate in known if candidate.origin not in GROWN_ORIGINS}
    repeated = 0
    for proposal in source:
        key = proposal.topology, proposal.rate
        if key in tried or key in found or not space.allows(proposal.topology):
            repeated += 1
            if repeated > TRIES:
                break
            continue
        found[key], repeated = proposal, 0
        if len(found) == count:
            break
    return list(found.values())


def _first(
    space: TopologySpace, rates: Sequence[float], count: int, generator: np.random.Generator
) -> Iterator[Proposal]:
    for rate in rates:
        yield Proposal(space.bare, rate, "host")
    middle = rates[len(rates) // 2]
    uniform = list(space.uniform())
    generator.shuffle(uniform)
    for topology in uniform[: max(1, count // 4)]:
        yield Proposal(topology, middle, "planted")
    yield from _random(space, rates, max(1, count), generator)


def _random(
    space: TopologySpace, rates: Sequence[float], strata: int, generator: np.random.Generator
) -> Iterator[Proposal]:
    """Random topologies without end, their sizes spread over the whole range."""
    while True:
        for stratum in generator.permutation(strata):
            share = (stratum + generator.random()) / strata
            rate = rates[int(generator.integers(len(rates)))]
            yield Proposal(space.drawn(share, generator), rate, "planted")


def _later(
    space: TopologySpace,
    rates: Sequence[float],
    known: Sequence[Candidate],
    count: int,
    generator: np.random.Generator,
) -> Iterator[Proposal]:
    finished = [candidate for candidate in known if candidate.finished]
    score_N = np.array([candidate.score for candidate in finished])
    size_N = np.array([float(candidate.params) for candidate in finished])
    front = [finished[index] for index in pareto(score_N, size_N)]
    for candidate in reversed(front):
        if candidate.origin in GROWN_ORIGINS:
            yield Proposal(candidate.topology, candidate.rate, "refit", candidate.number)
    drawn = _random(space, rates, max(1, count), generator)
    while True:
        if not front or generator.random() < RANDOM_SHARE:
            yield next(drawn)
            continue
        parent = front[int(generator.integers(len(front)))]
        near = space.neighbours(parent.topology)
        if near and generator.random() < 0.8:
            chosen = near[int(generator.integers(len(near)))]
            yield Proposal(chosen, parent.rate, "planted", parent.number)
        else:
            rate = rates[int(generator.integers(len(rates)))]
            origin: Origin = "planted" if any(parent.topology) else "host"
            yield Proposal(parent.topology, rate, origin, parent.number)
