"""What a run of `esper.grow` may cost, and how large its networks may be."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from esper.leyline.errors import EsperError


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a run; all that are given hold.

    `params` and `macs` limit each network that may be picked; a model above them is trained beside
    as the reference. `flops`, `host_runs` and `minutes` limit the whole search.
    """

    params: int | None = None
    """Most parameters of a network."""
    macs: float | None = None
    """Most multiply-accumulates of a network for one sample."""
    flops: float | None = None
    """Most floating-point operations of all training, forward and backward."""
    host_runs: float | None = None
    """Most compute, in training runs of your model; 20 if nothing else limits the search."""
    minutes: float | None = None
    """Longest wall-clock time."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise EsperError(
                    f"budget {field.name}={value!r}: give a number, or leave it out for no limit"
                )
            if not value > 0 or math.isinf(value):
                raise EsperError(f"budget {field.name}={value}: must be above 0, and finite")
        if self.params is not None and self.params != int(self.params):
            raise EsperError(f"budget params={self.params}: give a whole number of parameters")

    @property
    def seconds(self) -> float:
        """Longest wall-clock time; infinite: no limit."""
        return math.inf if self.minutes is None else 60.0 * self.minutes

    def allows(self, params: int, macs: int) -> bool:
        """Whether a network is within the limits."""
        within = self.params is None or params <= self.params
        return within and (self.macs is None or macs <= self.macs)

    def room(self, params: int, macs: int) -> float:
        """By how much a network may grow within the limits; below 1: it exceeds them."""
        return min(
            math.inf if self.params is None else self.params / max(1, params),
            math.inf if self.macs is None else self.macs / max(1, macs),
        )

    def excess(self, params: int, macs: int) -> tuple[str, int]:
        """Name of the limit that a network exceeds, and its size by that."""
        over_params = self.params is not None and params > self.params
        return ("params", params) if over_params else ("macs", macs)

    def require(self, params: int, macs: int) -> None:
        """Raise if a network exceeds the limits."""
        if not self.allows(params, macs):
            name, size = self.excess(params, macs)
            raise EsperError(f"budget {name}={getattr(self, name):g}: it has {size}")


DEFAULT_HOST_RUNS = 20.0
"""Compute of a search without a limit of its own."""
