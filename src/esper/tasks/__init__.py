"""Tasks: on what networks are grown. Data, splits and the order in which batches come."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper.tasks.digits import DigitsPart, DigitsSplit, load_digits_split
    from esper.tasks.order import epoch_order

_HOME = {
    "DigitsPart": "digits",
    "DigitsSplit": "digits",
    "epoch_order": "order",
    "load_digits_split": "digits",
}

__all__ = ["DigitsPart", "DigitsSplit", "epoch_order", "load_digits_split"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
