"""Builds any leyline struct from its type hints, so that tests set only relevant fields."""

from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from esper.leyline import ActionHead, ActionSpec, LifecycleOp, SeedStage
from esper.leyline.actions import HEAD_CHOICES
from esper.leyline.signals import HISTORY_LENGTH

FIXED = {
    "L": HISTORY_LENGTH,
    "O": len(LifecycleOp),
    "A": len(ActionHead),
    "Z": len(SeedStage),
    "Y": len(HEAD_CHOICES[ActionHead.STYLE]),
    "M": len(HEAD_CHOICES[ActionHead.TEMPO]),
    "T": len(HEAD_CHOICES[ActionHead.ALPHA_TARGET]),
    "V": len(HEAD_CHOICES[ActionHead.ALPHA_SPEED]),
    "U": len(HEAD_CHOICES[ActionHead.ALPHA_CURVE]),
}
TEXTS = {"slot_ids": "S", "blueprints": "K", "names": "P", "parts": "P"}


_hints_of = cache(get_type_hints)


def build(cls: type, overrides: dict[str, Any] | None = None, **sizes: int) -> Any:
    """An instance of `cls`: zeros, True, one-step episodes; `overrides` by field name."""
    if cls is ActionSpec:
        return ActionSpec.wait(sizes.get("E", 3))
    sizes = {"E": 3, "S": 2, "K": 2, "N": 4, "P": 2, **FIXED, **sizes}
    wanted = overrides or {}
    hints = _hints_of(cls)
    values = {
        f.name: wanted[f.name] if f.name in wanted else _value(f.name, hints[f.name], wanted, sizes)
        for f in fields(cls)
    }
    return cls(**values)


def _value(name: str, hint: Any, wanted: dict[str, Any], sizes: dict[str, int]) -> Any:
    if get_origin(hint) is np.ndarray:
        (scalar,) = get_args(get_args(hint)[1])
        letters = name.rpartition("_")[2] if name[-1].isupper() else "E"
        shape = tuple(sizes[letter] for letter in letters)
        return np.ones(shape, scalar) if scalar is np.bool_ else np.zeros(shape, scalar)
    if name in TEXTS:
        return tuple(f"r0c{i}" for i in range(sizes[TEXTS[name]]))
    if get_origin(hint) is tuple:
        return (0,) * len(SeedStage) if name == "stage_counts" else ()
    if isinstance(hint, type) and issubclass(hint, Enum):
        return next(iter(hint))
    if is_dataclass(hint):
        return build(hint, wanted, **sizes)
    if name == "episode_length":
        return 1
    return hint() if hint in (int, float, str, bool) else None
