"""Tolaria: how it runs. Devices, data on the device, and (to come) the engine of a population."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper.tolaria.data import SharedBatchIterator
    from esper.tolaria.runtime import CUDATimer

_HOME = {"CUDATimer": "runtime", "SharedBatchIterator": "data"}

__all__ = ["CUDATimer", "SharedBatchIterator"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
