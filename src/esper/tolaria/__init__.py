"""Tolaria: how it runs. The engine of a population, data on the device, judgement, devices."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper.tolaria.data import SharedBatchIterator
    from esper.tolaria.engine import EngineConfig, VectorizedEngine
    from esper.tolaria.env_state import ParallelEnvState
    from esper.tolaria.governor import TolariaGovernor
    from esper.tolaria.runtime import CUDATimer

_HOME = {
    "CUDATimer": "runtime",
    "EngineConfig": "engine",
    "ParallelEnvState": "env_state",
    "SharedBatchIterator": "data",
    "TolariaGovernor": "governor",
    "VectorizedEngine": "engine",
}

__all__ = [
    "CUDATimer",
    "EngineConfig",
    "ParallelEnvState",
    "SharedBatchIterator",
    "TolariaGovernor",
    "VectorizedEngine",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
