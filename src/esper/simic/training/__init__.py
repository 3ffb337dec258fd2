"""How a run of the learner goes: schedules, the update of a round, and (to come) the trainer."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper.simic.training.runner import run_ppo_updates as run_ppo_updates
    from esper.simic.training.schedules import Schedule as Schedule
    from esper.simic.training.schedules import (
        calculate_entropy_anneal_steps as calculate_entropy_anneal_steps,
    )

_HOME = {
    "Schedule": "schedules",
    "calculate_entropy_anneal_steps": "schedules",
    "run_ppo_updates": "runner",
}

__all__ = ["Schedule", "calculate_entropy_anneal_steps", "run_ppo_updates"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
