"""Which topologies an audit trains.

The host first, then one blueprint in every slot, single seeds, and random ones spread over
sizes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from esper.growing.topologies import EMPTY, Topology, with_seed
from esper.leyline.errors import EsperError
from esper.leyline.streams import stream_seed
from esper_lab.audit.topology_space import TopologySpace

MAX_LISTED: Final = 50_000
"""Spaces up to this size are listed where random draws keep repeating."""
DRAWS_EACH: Final = 50
"""Random draws for one more topology."""


def choose_topologies(space: TopologySpace, count: int, seed: int) -> tuple[Topology, ...]:
    """Choose `count` different topologies.

    Single seeds take at most half of what the host and the uniform topologies leave. Random
    ones are spread evenly over the logarithm of their size.
    """
    total = number_of_topologies(space)
    if not 1 <= count <= total:
        raise EsperError(
            f"--topologies {count}: the task has {total} topologies ({space.slots} slots, "
            f"blueprints {', '.join(space.blueprints) or 'none'}); choose 1 to {total}"
        )
    generator = np.random.default_rng(stream_seed(seed, "audit", "topologies"))
    chosen = dict.fromkeys((space.host, *space.uniform()))
    singles = [single for single in _single_seeds(space) if single not in chosen]
    most = max(0, (count - len(chosen) + 1) // 2)
    chosen |= dict.fromkeys(singles[at] for at in generator.permutation(len(singles))[:most])
    wanted = max(0, count - len(chosen))
    for place in range(wanted):
        share = (place + float(generator.random())) / wanted
        chosen[_another(space, share, chosen, generator)] = None
    return tuple(chosen)[:count]


def number_of_topologies(space: TopologySpace) -> int:
    """Topologies that fit the slots."""
    return math.prod(1 + len(space.options(slot)) for slot in range(space.slots))


def _single_seeds(space: TopologySpace) -> Iterator[Topology]:
    for slot in range(space.slots):
        for name in space.options(slot):
            yield with_seed(space.host, slot, name)


def _another(
    space: TopologySpace,
    share: float,
    chosen: dict[Topology, None],
    generator: np.random.Generator,
) -> Topology:
    """A topology of about this size that was not chosen yet; of another size if there is none."""
    for attempt in range(DRAWS_EACH):
        drawn = space.drawn(share if 2 * attempt < DRAWS_EACH else generator.random(), generator)
        if drawn not in chosen:
            return drawn
    slots = [(EMPTY, *space.options(slot)) for slot in range(space.slots)]
    if number_of_topologies(space) <= MAX_LISTED:
        rest = [topology for topology in itertools.product(*slots) if topology not in chosen]
        return rest[int(generator.integers(len(rest)))]
    while True:
        drawn = tuple(names[int(generator.integers(len(names)))] for names in slots)
        if drawn not in chosen:
            return drawn
