"""What a run of `esper.grow` may cost, and how large its networks may be."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal, get_args

from esper.leyline.errors import EsperError, unknown_name

Runtime = Literal["torch", "onnx"]


def take_numpy_values(settings: object, names: Iterable[str]) -> None:
    """Turn numpy numbers and arrays among the values of a frozen dataclass into Python's own."""
    for name in names:
        given = getattr(settings, name)
        if isinstance(given, list | tuple):
            object.__setattr__(settings, name, type(given)(map(_without_numpy, given)))
        else:
            object.__setattr__(settings, name, _without_numpy(given))


def _without_numpy(value: object) -> object:
    convert = getattr(value, "tolist", None)
    return value if convert is None else convert()


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
    latency_ms: float | None = None
    """Longest time of a network for one sample, in milliseconds, on the CPU of this machine."""
    latency_runtime: Runtime = "torch"
    """What computes that sample: torch, or ONNX Runtime."""
    latency_threads: int = 1
    """Threads that compute it."""

    def __post_init__(self) -> None:
        take_numpy_values(self, [field.name for field in fields(self)])
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or field.name == "latency_runtime":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise EsperError(
                    f"budget {field.name}={value!r}: give a number, or leave it out for no limit"
                )
            if not value > 0 or math.isinf(value):
                raise EsperError(f"budget {field.name}={value}: must be above 0, and finite")
        if self.params is not None and self.params != int(self.params):
            raise EsperError(f"budget params={self.params}: give a whole number of parameters")
        if self.latency_runtime not in get_args(Runtime):
            raise unknown_name("latency_runtime", self.latency_runtime, get_args(Runtime))
        if self.latency_threads != int(self.latency_threads):
            raise EsperError(f"budget latency_threads={self.latency_threads}: give a whole number")

    @property
    def seconds(self) -> float:
        """Longest wall-clock time; infinite: no limit."""
        return math.inf if self.minutes is None else 60.0 * self.minutes

    def training_runs(self, flops: float) -> float:
        """Most compute of the search, in training runs of so many FLOPs; infinite: as time allows.

        >>> Budget().training_runs(100.0), Budget(minutes=1).training_runs(100.0)
        (20.0, inf)
        """
        limits = [] if self.host_runs is None else [self.host_runs]
        if self.flops is not None:
            limits.append(self.flops / flops)
        return min(limits, default=DEFAULT_HOST_RUNS if self.minutes is None else math.inf)

    def allows(self, params: int, macs: int, latency: float = 0.0) -> bool:
        """Whether a network is within the limits; `latency`: in ms, 0: not measured."""
        return self.room(params, macs, latency) >= 1.0

    def room(self, params: int, macs: int, latency: float = 0.0) -> float:
        """By how much a network may grow within the limits; below 1: it exceeds them."""
        return min(
            math.inf if self.params is None else self.params / max(1, params),
            math.inf if self.macs is None else self.macs / max(1, macs),
            math.inf if self.latency_ms is None or not latency else self.latency_ms / latency,
        )

    def excess(self, params: int, macs: int, latency: float = 0.0) -> tuple[str, float]:
        """Name of the limit that a network exceeds, and its size by that."""
        if self.params is not None and params > self.params:
            return "params", params
        if self.macs is not None and macs > self.macs:
            return "macs", macs
        return "latency_ms", float(f"{latency:.3g}")

    def require(self, params: int, macs: int, latency: float = 0.0) -> None:
        """Raise if a network exceeds the limits."""
        if not self.allows(params, macs, latency):
            name, size = self.excess(params, macs, latency)
            raise EsperError(f"budget {name}={getattr(self, name):g}: it has {size:,}")


DEFAULT_HOST_RUNS = 20.0
"""Compute of a search without a limit of its own."""
