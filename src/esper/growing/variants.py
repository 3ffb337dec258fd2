"""Makes the variants of the user's model: at other widths, and with other numbers of its blocks."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from esper.growing.problem import Model, limit_blueprints
from esper.growing.settings import GrowSettings
from esper.kasmina.tracing import Depths, ScaledModel, Scaling
from esper.leyline.errors import EsperError

DEPTHS: Final = (0.5, 2.0)
"""Multiples of the number of blocks that are tried where a model repeats blocks."""


class VariantMaker:
    """The model at any width and depth; what they share is found once."""

    def __init__(self, model: Model, example: Any, settings: GrowSettings) -> None:
        self._model, self._example, self._settings = model, example, settings
        self._scalings: dict[float, Scaling] = {}

    @cached_property
    def depths(self) -> tuple[float, ...]:
        """Other depths to try."""
        wanted = self._settings.depths
        if wanted == "auto":
            return DEPTHS if self._depths.stacks else ()
        return tuple(depth for depth in wanted if depth != 1)

    def check(self) -> None:
        """Raise if the model cannot have one of its depths."""
        for depth in self.depths:
            try:
                self._scaling(depth)
            except EsperError as error:
                raise EsperError(f"depth {depth:g}: {error}") from error

    @cached_property
    def _depths(self) -> Depths:
        return Depths(self._model, self._example, self._settings.output)

    def _scaling(self, depth: float) -> Scaling:
        if depth not in self._scalings:
            model = self._model if depth == 1 else self._depths.at(depth)
            settings = self._settings
            self._scalings[depth] = Scaling(model, self._example, settings.output, settings.slots)
        return self._scalings[depth]

    def scaled(self, width: float, depth: float) -> ScaledModel:
        """The model at another width and depth; raises if it cannot be made.

        At its own width the weights of the blocks that stay are those of the model.
        """
        scaling, names = self._scaling(depth), self._settings.blueprints
        found = scaling.own() if width == 1 and depth != 1 else scaling.at(width)
        found = replace(found, given=self._scaling(1.0).own().size)
        if names is None:
            return found
        whole = found
        return replace(found, trace=lambda: limit_blueprints(whole.host, names))
