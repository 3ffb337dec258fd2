"""Topologies of a host: which blueprint each slot holds, what that costs, and which to try.

A topology is a tuple with one blueprint name per slot, "" for an empty slot.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from esper.growing.topologies import EMPTY, Topology, with_seed
from esper.kasmina.costs.seed_costs import TrainingCosts
from esper.kasmina.lifecycle.caps import SeedCosts
from esper.leyline.arrays import Bools
from esper.leyline.signals import NO_BLUEPRINT

OVERSHOOT: Final = 1.15
"""A drawn topology may exceed the size it was drawn for by this factor."""


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a network, and what training it costs."""

    params: int
    macs: int
    cost: float
    """Of a training batch, relative to the host's."""


class TopologySpace:
    """All topologies of a host within the limits of a budget."""

    def __init__(
        self,
        blueprints: Sequence[str],
        fits_SK: Bools,
        costs: SeedCosts,
        training: TrainingCosts,
        params_cap: float = math.inf,
        macs_cap: float = math.inf,
    ) -> None:
        self.blueprints = tuple(blueprints)
        self.fits_SK = fits_SK
        self.costs, self.training = costs, training
        self.params_cap, self.macs_cap = params_cap, macs_cap

    @property
    def slots(self) -> int:
        """S."""
        return len(self.fits_SK)

    @property
    def host(self) -> Topology:
        """The host without seeds: every slot empty."""
        return (EMPTY,) * self.slots

    def options(self, slot: int) -> list[str]:
        """Blueprints that fit a slot."""
        return [
            name for name, fits in zip(self.blueprints, self.fits_SK[slot], strict=True) if fits
        ]

    def kinds(self, topology: Topology) -> list[int]:
        """Blueprint index of every slot, `NO_BLUEPRINT` for an empty one."""
        return [self.blueprints.index(name) if name else NO_BLUEPRINT for name in topology]

    def size(self, topology: Topology) -> Size:
        """Parameters, MACs and training cost of the host with these seeds."""
        at = [(slot, kind) for slot, kind in enumerate(self.kinds(topology)) if kind >= 0]
        costs, training = self.costs, self.training
        seeds = sum(int(training.seed_SK[place]) for place in at)
        return Size(
            costs.host_params + sum(int(costs.params_SK[place]) for place in at),
            costs.host_macs + sum(int(costs.macs_SK[place]) for place in at),
            1.0 + seeds / max(1, training.host),
        )

    def holds(self, topology: Topology) -> bool:
        """Whether a topology, perhaps of another width, fits the slots and the limits."""
        if len(topology) != self.slots:
            return False
        fitting = (not name or name in self.options(slot) for slot, name in enumerate(topology))
        return all(fitting) and self.allows(topology)

    def allows(self, topology: Topology) -> bool:
        """Whether a topology is within the limits."""
        size = self.size(topology)
        return size.params <= self.params_cap and size.macs <= self.macs_cap

    def largest(self) -> Topology:
        """The largest topology that taking the largest seed slot by slot leads to."""
        topology = self.host
        for slot in range(self.slots):
            fitting = sorted(self.options(slot), key=lambda name: -self._params(slot, name))
            topology = next(
                (t for t in (with_seed(topology, slot, n) for n in fitting) if self.allows(t)),
                topology,
            )
        return topology

    def _params(self, slot: int, name: str) -> int:
        return int(self.costs.params_SK[slot, self.blueprints.index(name)])

    # ---- proposals ------------------------------------------------------------------------

    def uniform(self) -> Iterator[Topology]:
        """Yield topologies with one blueprint in every slot it fits, as far as the limits allow."""
        for name in self.blueprints:
            topology = self.host
            for slot in range(self.slots):
                more = with_seed(topology, slot, name)
                if name in self.options(slot) and self.allows(more):
                    topology = more
            if topology != self.host:
                yield topology

    def drawn(self, share: float, generator: np.random.Generator) -> Topology:
        """A random topology of about a given size.

        `share`: 0 for the host's size, 1 for the largest topology's, logarithmic between them.
        """
        least, most = self.costs.host_params, self.size(self.largest()).params
        wanted = least * (most / max(1, least)) ** share
        topology = self.host
        for slot in generator.permutation(self.slots):
            fitting = [
                more
                for more in (with_seed(topology, int(slot), n) for n in self.options(int(slot)))
                if self.allows(more) and self.size(more).params <= OVERSHOOT * wanted
            ]
            if fitting:
                topology = fitting[int(generator.integers(len(fitting)))]
        return topology

    def neighbours(self, topology: Topology) -> list[Topology]:
        """All legal topologies that differ in one slot."""
        found = []
        for slot, held in enumerate(topology):
            for name in (EMPTY, *self.options(slot)):
                changed = with_seed(topology, slot, name)
                if name != held and self.allows(changed):
                    found.append(changed)
        return found
