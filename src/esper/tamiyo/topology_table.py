"""Tables price -> topology: which seeds to plant at which price of growth, for one task.

A JSON file:

    {"format": "esper-topology-table", "version": 1, "task": "digits_impaired",
     "rows": [{"max_price": 0.5, "topology": ["r0c0=conv_light", "r0c1=depthwise"]},
              {"max_price": "Infinity", "topology": []}]}

The first row whose `max_price` is not below a member's price applies; above all of them, the last.

Shape letters: E members, S slots.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from esper.leyline.arrays import Doubles, Ints
from esper.leyline.codec import read_record, to_json
from esper.leyline.errors import EsperError, shown
from esper.leyline.signals import NO_BLUEPRINT
from esper.storage.sealed_json import read_document
from esper.tamiyo.scripted import index_of

FORMAT: Final = "esper-topology-table"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class TableRow:
    """Topology up to a price."""

    max_price: float
    """Largest price of growth, relative to the task's, at which the row applies."""
    topology: tuple[str, ...]
    """`slot=blueprint` entries; empty: the host."""

    def __post_init__(self) -> None:
        if not self.max_price > 0:
            raise EsperError(f"max_price {self.max_price:g}: must be above 0")
        pairs = [word.partition("=")[::2] for word in self.topology]
        slots = [slot for slot, _ in pairs]
        for word, (slot, blueprint) in zip(self.topology, pairs, strict=True):
            if not (slot and blueprint):
                raise EsperError(f"topology {shown(word)}: expected slot=blueprint")
            if slots.count(slot) > 1:
                raise EsperError(f"topology: slot {slot} is named twice")


@dataclass(frozen=True, slots=True)
class TopologyTable:
    """Topologies of a task by price of growth."""

    task: str
    """Name of the task it was made for."""
    rows: tuple[TableRow, ...]
    """In ascending order of `max_price`."""
    version: int = VERSION
    """Version of the format."""
    format: str = FORMAT

    def __post_init__(self) -> None:
        prices = [row.max_price for row in self.rows]
        if not prices:
            raise EsperError("a topology table needs at least one row")
        if any(after <= before for before, after in pairwise(prices)):
            raise EsperError(f"max_price of the rows {prices}: must increase from row to row")

    def wanted(self, price_E: Doubles, slots: Sequence[str], blueprints: Sequence[str]) -> Ints:
        """Blueprint index `[E, S]` of each member at its price; `NO_BLUEPRINT`: left empty."""
        topology_RS = np.full((len(self.rows), len(slots)), NO_BLUEPRINT, dtype=np.int64)
        for place, row in enumerate(self.rows):
            for word in row.topology:
                slot, _, blueprint = word.partition("=")
                at = place, index_of("slot", slot, slots, "of a topology table")
                topology_RS[at] = index_of("blueprint", blueprint, blueprints, f"for slot {slot}")
        limits_R = np.array([row.max_price for row in self.rows])
        row_E = np.searchsorted(limits_R, price_E).clip(max=len(self.rows) - 1)
        return np.asarray(topology_RS[row_E])

    def at_rent(self, rent: float) -> TopologyTable:
        """The table for prices that are relative to `rent` times the task's.

        >>> rows = TableRow(1.0, ("r0c0=norm",)), TableRow(4.0, ())
        >>> [row.max_price for row in TopologyTable("any", rows).at_rent(2.0).rows]
        [0.5, 2.0]
        """
        if rent == 0:  # growth is free: the lowest price
            return replace(self, rows=self.rows[:1])
        return replace(
            self, rows=tuple(replace(row, max_price=row.max_price / rent) for row in self.rows)
        )

    @property
    def digest(self) -> str:
        """Short checksum of its contents."""
        known = json.dumps(to_json(self), sort_keys=True).encode()
        return hashlib.sha256(known).hexdigest()[:12]


def read_table(path: Path, task: str) -> TopologyTable:
    """Read a table for a task; raises if it is for another task or of another version."""
    content = read_document(path)
    where = f"table {shown(str(path))}"
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise EsperError(f"{where}: not a topology table ({FORMAT})")
    if content.get("version") != VERSION:
        raise EsperError(
            f"{where}: version {shown(content.get('version'))}, this Esper reads version "
            f"{VERSION}; make it again"
        )
    try:
        table = read_record(TopologyTable, content, where)
    except EsperError as error:
        raise EsperError(str(error) if where in str(error) else f"{where}: {error}") from None
    if table.task != task:
        raise EsperError(f"{where}: made for task {table.task}, not for {task}; give one for it")
    return table
