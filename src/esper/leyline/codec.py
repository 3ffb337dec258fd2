"""Convert dataclass records to JSON and back, guided by their type hints.

Arrays become lists and get their dtype back from the hint; an empty array comes back one-
dimensional. Enum members are written by name. JSON has no NaN or infinities: they are written as
the strings "NaN", "Infinity" and "-Infinity".

Every field is written and must be there when it is read, also one with a default. Whoever adds,
removes or renames a field of a file increases the file's schema. A field that is marked `LATER` may
be missing: files of before it was added mean its default.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Any,
    Final,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from esper.leyline.errors import EsperError, shown, unknown_name

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
MAX_INTEGER_BITS: Final = 128
"""Largest integer, in bits: Python refuses to print much longer ones."""
LATER: Final[Mapping[str, bool]] = MappingProxyType({"later": True})
"""Metadata of a field that older files lack: it is written only where it is not its default, so
that files and their hashes stay what they were."""
_NON_FINITE: Final = ("NaN", "Infinity", "-Infinity")
_T = TypeVar("_T")
_EnumT = TypeVar("_EnumT", bound=Enum)


def to_json(value: object) -> Json:
    """Convert a record or one of its values to plain JSON data."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, np.ndarray):
        finite = value.dtype.kind != "f" or bool(np.isfinite(value).all())
        listed: Json = value.tolist()
        return listed if finite else to_json(listed)
    if isinstance(value, np.generic):
        return to_json(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else _non_finite(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: to_json(getattr(value, f.name)) for f in fields(value) if not _unused(f, value)
        }
    kind = type(value).__name__
    raise EsperError(f"{kind} {shown(value)}: no JSON form; use numbers, text, arrays")


def _unused(field: Field[Any], record: object) -> bool:
    """Whether a later field has its default."""
    if not field.metadata.get("later") or field.default is MISSING:
        return False
    return bool(getattr(record, field.name) == field.default)


def _non_finite(value: float) -> str:
    nan, positive, negative = _NON_FINITE
    if math.isnan(value):
        return nan
    return positive if value > 0 else negative


def from_json(hint: object, data: object, where: str) -> object:
    """Return the value of type `hint` that `to_json` wrote as `data`; `where` is for errors."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _read_union(args, data, where)
    if origin is Literal:
        if data not in args:
            raise unknown_name("value", data, map(str, args), f"in {where}")
        return data
    if origin is np.ndarray:
        (scalar,) = get_args(args[1])
        return _read_array(scalar, data, where)
    if origin is tuple:
        return _read_tuple(args, data, where)
    if not isinstance(hint, type):
        raise EsperError(f"{where}: no JSON form for the type {hint}")
    if issubclass(hint, Enum):
        return read_enum(hint, data, where)
    if is_dataclass(hint):
        return read_record(hint, data, where)
    return _read_scalar(hint, data, where)


def read_enum(cls: type[_EnumT], data: object, where: str) -> _EnumT:
    """Read an enum member by name."""
    if not isinstance(data, str) or data not in cls.__members__:
        raise unknown_name(cls.__name__, data, cls.__members__, f"in {where}")
    return cls[data]


def read_record(cls: type[_T], data: object, where: str, **narrowed: object) -> _T:
    """Read a dataclass written as an object; `narrowed` overrides the type of single fields."""
    entries = _require(dict, data, where)
    hints = _field_hints(cls) | narrowed
    for name in entries:
        if name not in hints:
            raise unknown_name("field", name, hints, f"in {where}")
    later = {field.name for field in fields(cls) if field.metadata.get("later")}  # type: ignore[arg-type]
    for name in hints:
        if name not in entries and name not in later:
            raise EsperError(f"{where}: field {name!r} is missing")
    build: Callable[..., _T] = cls
    given = [name for name in hints if name in entries]
    return build(
        **{name: from_json(hints[name], entries[name], f"{where}.{name}") for name in given}
    )


def _read_union(args: tuple[object, ...], data: object, where: str) -> object:
    """Read None, a value of a Literal, or a value of the one other type."""
    words = [word for arg in args if get_origin(arg) is Literal for word in get_args(arg)]
    if data is None or data in words:
        return data
    (present,) = (arg for arg in args if arg is not NoneType and get_origin(arg) is not Literal)
    return from_json(present, data, where)


def _read_array(scalar: type[np.generic], data: object, where: str) -> object:
    try:
        return np.array(_require(list, data, where), dtype=scalar)
    except (ValueError, OverflowError, TypeError) as error:
        raise EsperError(f"{where}: not an array of {scalar.__name__} ({error})") from None


def _read_tuple(args: tuple[object, ...], data: object, where: str) -> tuple[object, ...]:
    items = _require(list, data, where)
    hints = [args[0]] * len(items) if args[-1] is Ellipsis else list(args)
    if len(hints) != len(items):
        raise EsperError(f"{where}: {len(items)} items, expected {len(hints)}")
    pairs = zip(hints, items, strict=True)
    return tuple(from_json(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(pairs))


def _read_scalar(hint: type, data: object, where: str) -> object:
    if hint is float and isinstance(data, str) and data in _NON_FINITE:
        return float(data)
    if hint is float and type(data) is int:
        return _as_float(data, where)
    if hint is int and isinstance(data, bool):
        raise EsperError(f"{where}: {data!r}, expected int")
    if hint is int and isinstance(data, int) and data.bit_length() > MAX_INTEGER_BITS:
        raise EsperError(f"{where}: {shown(data)}, too large an integer")
    return _require(hint, data, where)


def _as_float(data: int, where: str) -> float:
    try:
        return float(data)
    except OverflowError:
        raise EsperError(
            f"{where}: {shown(data)}, expected float, at most {sys.float_info.max:.2g}"
        ) from None


def _require(kind: type[_T], data: object, where: str) -> _T:
    if not isinstance(data, kind):
        raise EsperError(f"{where}: {shown(data)}, expected {kind.__name__}")
    return data


_HINTS: dict[type, dict[str, object]] = {}


def _field_hints(cls: type) -> dict[str, object]:
    """Return field name -> resolved type hint of a dataclass, cached."""
    if cls not in _HINTS:
        hints = get_type_hints(cls)
        _HINTS[cls] = {f.name: hints[f.name] for f in fields(cls)}
    return _HINTS[cls]
