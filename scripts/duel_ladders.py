"""Ladders of the duel's contenders that propose something else than `esper.grow` does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from esper.growing.ladder import Affordable, Ladder
from esper.growing.moves import pick
from esper.growing.proposals import MAX_RUNS, origin_of
from esper.growing.runs import Recipe, Row, Table
from esper.growing.topologies import EMPTY, with_seed


class OnceLadder(Ladder):
    """Trains no network again from other initial weights."""

    def _restarted(self, row: Row, place: int) -> Row:
        return row  # it is known by then


class RandomLadder(Ladder):
    """Proposes networks, rates and regularisers drawn at random, in full runs."""

    def first(self) -> Row:
        """The model as given, in full."""
        return self._model(self.full)

    def finale(self, *_: Any, **__: Any) -> list[Row]:
        """None."""
        return []

    def meanwhile(self, table: Table) -> Iterator[Row]:
        """None beside the first run; later neighbours."""
        return super().meanwhile(table) if table.rungs > 1 else iter(())

    def _rung(
        self, rung: int, rows: Sequence[Row], left: float, cost: Affordable, least: int = 0
    ) -> list[Row]:
        wanted = self._fresh(self._proposals(rung, rows), rows)
        return self._affordable(wanted, cost, left, left, least)

    def _proposals(self, rung: int, rows: Sequence[Row]) -> Iterator[Row]:
        networks, generator = self.networks, self._generator(rung)
        for _ in range(100 * MAX_RUNS):
            variant = int(generator.integers(len(networks.variants)))
            held = networks.variants[variant]
            topology = held.bare
            for slot in range(len(topology)):
                if generator.random() < 1.0 / (1 + len(topology)):
                    options = (EMPTY, *held.options(slot))
                    topology = with_seed(topology, slot, pick(options, generator))
            recipe, origin = self._recipe(generator), origin_of(variant, topology)
            yield replace(self._row(rung, variant, topology, recipe, origin), purpose="random")

    def _recipe(self, generator: np.random.Generator) -> Recipe:
        space = self.space
        return replace(
            space.recipe,
            lr=pick(space.rates, generator),
            augment=pick(space.augments, generator),
            label_smoothing=pick(space.smoothings, generator),
        )
