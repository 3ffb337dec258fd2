"""Array dtypes, and structs of arrays whose field names encode their shapes.

A field `loss_E` or `alpha_ES` is an array whose axes are the capital letters after its last
underscore. Within one struct, equal letters mean equal sizes; that is checked at construction.

Letters: E members, S slots, N occurrences, K blueprints, O operations, A action heads, Z stages,
L last values, P parts of a reward.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from esper.leyline.errors import EsperError

# Spelt out, because `npt.NDArray[...]` hides ndarray and dtype from `get_args` since numpy 2.5,
# and records are read back by their type hints.
_Shape = tuple[Any, ...]
Floats = np.ndarray[_Shape, np.dtype[np.float32]]
"""Measurements and signals; NaN where not measured."""
Doubles = np.ndarray[_Shape, np.dtype[np.float64]]
"""Scores and rewards, whose differences must add up."""
Ints = np.ndarray[_Shape, np.dtype[np.int64]]
Codes = np.ndarray[_Shape, np.dtype[np.int8]]
"""Values of an `IntEnum`; -1 for none."""
Bools = np.ndarray[_Shape, np.dtype[np.bool_]]

_LETTERS: Final = re.compile(r"_([A-Z]+)$")
_SHARED: Final = "ES"
"""Letters whose sizes must agree across nested structs; others are local to one struct."""

_Array = npt.NDArray[Any]
StructT = TypeVar("StructT", bound="ArrayStruct")
_ArrayT = TypeVar("_ArrayT", bound=_Array)

_LAYOUTS: dict[type, tuple[tuple[str, str], ...]] = {}


def _layout(cls: type) -> tuple[tuple[str, str], ...]:
    """Return (field name, shape letters) of each field; empty letters: not an array."""
    if cls not in _LAYOUTS:
        found = ((f.name, _LETTERS.search(f.name)) for f in fields(cls))
        _LAYOUTS[cls] = tuple((name, match[1] if match else "") for name, match in found)
    return _LAYOUTS[cls]


class _RemembersSizes:
    """Room for the sizes of a struct, which are not a field of it."""

    __slots__ = ("_sizes",)
    _sizes: dict[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class ArrayStruct(_RemembersSizes):
    """Frozen struct of arrays: shapes are checked, and `==` compares contents (NaN equals NaN)."""

    def __post_init__(self) -> None:
        self.sizes()

    def sizes(self) -> dict[str, int]:
        """Return the size of each shape letter; raises if fields disagree."""
        try:
            return self._sizes
        except AttributeError:  # the first call
            known = self._read_sizes()
            object.__setattr__(self, "_sizes", known)
            return known

    def _read_sizes(self) -> dict[str, int]:
        known: dict[str, int] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        """Shape of the last field with these letters: most fields have one that was read before."""
        for name, letters in _layout(type(self)):
            value = getattr(self, name)
            if letters:
                shape = value.shape if type(value) is np.ndarray else np.shape(value)
                if shapes.get(letters) == shape:
                    continue
                shapes[letters] = shape
                found = self._axes(name, letters, shape)
            elif isinstance(value, ArrayStruct):
                inner = value.sizes().items()
                found = tuple((letter, size) for letter, size in inner if letter in _SHARED)
            else:
                continue
            for letter, size in found:
                if known.setdefault(letter, size) != size:
                    raise EsperError(
                        f"{type(self).__name__}.{name}: {letter} is {size}, "
                        f"but {known[letter]} in the fields before it"
                    )
        return known

    def _axes(self, name: str, letters: str, shape: tuple[int, ...]) -> tuple[tuple[str, int], ...]:
        """Return (letter, size) of each axis of one array field."""
        if len(shape) != len(letters):
            raise EsperError(
                f"{type(self).__name__}.{name}: shape {shape}, expected axes [{', '.join(letters)}]"
            )
        return tuple(zip(letters, shape, strict=True))

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return _same_fields(self, other)

    __hash__ = None  # type: ignore[assignment]


def map_member_arrays(struct: StructT, change: Callable[[_Array], _Array]) -> StructT:
    """Return a copy with `change` applied to each array whose first axis is E, nested ones too."""
    changes: dict[str, Any] = {}
    for name, letters in _layout(type(struct)):
        value = getattr(struct, name)
        if isinstance(value, ArrayStruct):
            changes[name] = map_member_arrays(value, change)
        elif letters.startswith("E"):
            changes[name] = change(value)
    return replace(struct, **changes)


def read_only(struct: StructT) -> StructT:
    """Replace the arrays of a new struct by views that refuse to be written; returns the struct.

    What others hold of the same arrays stays as writable as it was.
    """
    for name, letters in _layout(type(struct)):
        value = getattr(struct, name)
        if isinstance(value, ArrayStruct):
            read_only(value)
        elif letters and value.flags.writeable:
            object.__setattr__(struct, name, read_only_view(value))
    return struct


def read_only_view(values: _ArrayT) -> _ArrayT:
    """Return the same values as an array that refuses to be written."""
    view = values.view()
    view.flags.writeable = False
    return view


def _same(left: object, right: object) -> bool:
    """Equal contents, where NaN equals NaN."""
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        floating = left.dtype.kind == "f" and right.dtype.kind == "f"
        return np.array_equal(left, right, equal_nan=floating)
    if isinstance(left, float) and isinstance(right, float) and left != left:
        return right != right
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    if is_dataclass(left) and type(left) is type(right):
        return _same_fields(left, right)
    return bool(left == right)


def _same_fields(left: object, right: object) -> bool:
    """Equal contents of two dataclasses of one type."""
    return all(_same(getattr(left, n), getattr(right, n)) for n, _ in _layout(type(left)))
