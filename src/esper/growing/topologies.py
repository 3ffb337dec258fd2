"""Topologies: which blueprint each slot holds, a tuple with one name per slot."""

from __future__ import annotations

from typing import Final

Topology = tuple[str, ...]
EMPTY: Final = ""
"""An empty slot."""


def with_seed(topology: Topology, slot: int, name: str) -> Topology:
    """The topology with another blueprint, or none, in a slot."""
    return (*topology[:slot], name, *topology[slot + 1 :])
