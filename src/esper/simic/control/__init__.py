"""What keeps the learner's numbers at a moderate size: running normalisers, checkpointed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper.simic.control.normalizers import ObservationNormalizer as ObservationNormalizer
    from esper.simic.control.normalizers import RewardNormalizer as RewardNormalizer
    from esper.simic.control.normalizers import RunningMeanStd as RunningMeanStd

_HOME = {
    "ObservationNormalizer": "normalizers",
    "RewardNormalizer": "normalizers",
    "RunningMeanStd": "normalizers",
}

__all__ = ["ObservationNormalizer", "RewardNormalizer", "RunningMeanStd"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
