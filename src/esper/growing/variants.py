"""Variants of the user's model that a search starts from: the model itself, and other widths.

Each has its own slots, and members of different variants cannot share a population.

Shape letters: E members of all variants, in the order of their variants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from esper.growing.setup import Builder
from esper.growing.topologies import Size, Topology, TopologySpace
from esper.growing.training import BracketTrainer, Ticker, Validation
from esper.kasmina.tracing import HostTrace
from esper.leyline.arrays import Doubles, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One host of a search."""

    name: str
    """Empty for the model as it was given."""
    builder: Builder
    space: TopologySpace
    cost: float
    """Training cost without seeds, relative to the model as given."""

    @property
    def trace(self) -> HostTrace:
        """How the host was made from the user's model."""
        return self.builder.trace

    def size(self, topology: Topology) -> Size:
        """Size of a topology; its cost is relative to the model as given."""
        own = self.space.size(topology)
        return Size(own.params, own.macs, own.cost * self.cost)


class Field:
    """All members of a bracket: one trainer for each variant that has any."""

    def __init__(self, variants: Sequence[Variant], trainers: Mapping[int, BracketTrainer]) -> None:
        self.variants = variants
        self.trainers = {host: trainers[host] for host in sorted(trainers)}

    @property
    def host_E(self) -> Ints:
        """Variant of each member."""
        hosts = [np.full(t.population.members, host) for host, t in self.trainers.items()]
        return np.concatenate(hosts)

    @property
    def batch(self) -> int:
        """Batches that every member has trained on."""
        return min(trainer.batch for trainer in self.trainers.values())

    @property
    def compute_E(self) -> Doubles:
        """Training compute of each member, in batches of the model as given."""
        parts = [self.variants[host].cost * t.compute_E for host, t in self.trainers.items()]
        return np.concatenate(parts)

    def set_compute(self, compute_E: Doubles) -> None:
        """Set what each member has spent."""
        for host, trainer, part in self._parts():
            trainer.compute_E = compute_E[part] / self.variants[host].cost

    def _parts(self) -> list[tuple[int, BracketTrainer, slice]]:
        """Variant, trainer and range of members of each trainer."""
        first, found = 0, []
        for host, trainer in self.trainers.items():
            last = first + trainer.population.members
            found.append((host, trainer, slice(first, last)))
            first = last
        return found

    def locate(self, member: int) -> tuple[BracketTrainer, int]:
        """Trainer of a member, and its number there."""
        for _, trainer, part in self._parts():
            if part.start <= member < part.stop:
                return trainer, member - part.start
        raise IndexError(member)

    def train(self, until: int, tick: Ticker) -> None:
        """Train all members up to a number of batches."""
        for trainer in self.trainers.values():
            trainer.train(until, tick)

    def settle(self) -> None:
        """Remove seeds that have not made it into their networks."""
        for trainer in self.trainers.values():
            trainer.settle()

    def validate(self, val: Validation) -> tuple[Doubles, Doubles]:
        """Score and loss `[E]` of the members."""
        found = [trainer.validate(val) for trainer in self.trainers.values()]
        scores, losses = zip(*found, strict=True)
        return np.concatenate(scores), np.concatenate(losses)

    def without_each_seed(self, val: Validation) -> tuple[Ints, Ints, Doubles]:
        """Score of every member without each of its seeds: members, slots and scores `[N]`."""
        found = []
        for _, trainer, part in self._parts():
            member_N, slot_N, score_N = trainer.without_each_seed(val)
            found.append((member_N + part.start, slot_N, score_N))
        members, slots, scores = zip(*found, strict=True)
        return np.concatenate(members), np.concatenate(slots), np.concatenate(scores)

    def topologies(self) -> list[Topology]:
        """What each member holds."""
        return [held for trainer in self.trainers.values() for held in trainer.topologies()]

    def select(self, members: Ints) -> Ints:
        """Continue with these members only, some perhaps several times.

        Returns their new order: member i is now the one that was at `members[order[i]]`.
        """
        order = np.argsort(self.host_E[members], kind="stable")
        kept: dict[int, BracketTrainer] = {}
        for host, trainer, part in self._parts():
            mine = members[order]
            mine = mine[(mine >= part.start) & (mine < part.stop)] - part.start
            if mine.size:
                trainer.select(mine)
                kept[host] = trainer
        self.trainers = kept
        return np.asarray(order)
