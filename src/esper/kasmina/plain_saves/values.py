"""Arguments of calls and constructors as JSON, and back.

>>> encode((1, slice(None, 2), float("inf")), {})
['tuple', 1, ['slice', None, 2, None], ['float', 'inf']]
>>> decode(['tuple', 1, ['slice', None, 2, None]], ())
(1, slice(None, 2, None))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx

from esper.leyline.errors import EsperError, shown

MAX_INTEGER: Final = 2**63 - 1
"""Largest size that torch knows."""
_DTYPES = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
    "bool", "complex64", "complex128",
)  # fmt: skip
_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
_TORCH_VALUES: Final[Mapping[str, Mapping[str, Any]]] = {
    "dtype": {name: getattr(torch, name) for name in _DTYPES},
    "memory_format": {name: getattr(torch, name) for name in _FORMATS},
    "layout": {"strided": torch.strided},
}
_NON_FINITE: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_DEVICES: Final = ("cpu", "cuda", "mps", "xpu")


def encode(value: object, numbers: Mapping[fx.Node, int]) -> Any:
    """Return a value as JSON; raises if it has no such form.

    `numbers`: of the nodes that it may refer to.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, fx.Node):
        return ["node", numbers[value]]
    if isinstance(value, slice):
        return ["slice", *(encode(v, numbers) for v in (value.start, value.stop, value.step))]
    if isinstance(value, dict):
        return ["dict", *([encode(k, {}), encode(v, numbers)] for k, v in value.items())]
    if isinstance(value, tuple | list):
        kind = "list" if isinstance(value, list) else "tuple"
        return [kind, *(encode(v, numbers) for v in value)]
    return _torch_value(value)


def _torch_value(value: object) -> Any:
    if value is ...:
        return ["ellipsis"]
    if isinstance(value, torch.device):
        return ["device", str(value)]
    for kind, known in _TORCH_VALUES.items():
        for name, found in known.items():
            if value is found:
                return [kind, name]
    raise EsperError(f"a value of type {type(value).__name__}")


def _number(value: int | float) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return ["float", str(value)]
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise EsperError(f"the number {shown(value)}")
    return float(value) if isinstance(value, float) else int(value)


def decode(data: object, nodes: Sequence[fx.Node]) -> Any:
    """Return the value that was encoded; raises for anything else.

    `nodes`: those it may refer to.
    """
    if data is None or isinstance(data, bool | str | float):
        return data
    if isinstance(data, int):
        if abs(data) > MAX_INTEGER:
            raise EsperError(f"the number {shown(data)} is too large")
        return data
    if isinstance(data, list) and data and isinstance(data[0], str):
        kind, *rest = data
        if kind in _DECODERS:
            return _DECODERS[kind](rest, nodes)
        if kind in _TORCH_VALUES:
            return _named(kind, rest, _TORCH_VALUES[kind])
    raise EsperError(f"{shown(data)} is no argument")


def _named(kind: str, rest: list[Any], known: Mapping[str, Any]) -> Any:
    if len(rest) != 1 or not isinstance(rest[0], str) or rest[0] not in known:
        raise EsperError(f"{shown(rest)} is no {kind}")
    return known[rest[0]]


def _node(rest: list[Any], nodes: Sequence[fx.Node]) -> fx.Node:
    index = rest[0] if len(rest) == 1 else None
    if type(index) is not int or not 0 <= index < len(nodes):
        raise EsperError(f"{shown(rest)} is no earlier call")
    return nodes[index]


def _slice(rest: list[Any], nodes: Sequence[fx.Node]) -> slice:
    if len(rest) != 3:
        raise EsperError(f"{shown(rest)} is no slice")
    return slice(*(decode(v, nodes) for v in rest))


def _dict(rest: list[Any], nodes: Sequence[fx.Node]) -> dict[Any, Any]:
    if not all(isinstance(p, list) and len(p) == 2 and isinstance(p[0], str | int) for p in rest):
        raise EsperError(f"{shown(rest)} is no dict")
    return {key: decode(value, nodes) for key, value in rest}


def _device(rest: list[Any], nodes: Sequence[fx.Node]) -> torch.device:
    text = rest[0] if len(rest) == 1 and isinstance(rest[0], str) else ""
    kind, _, index = text.partition(":")
    if kind not in _DEVICES or (index and not (index.isdecimal() and len(index) <= 3)):
        raise EsperError(f"{shown(rest)} is no device")
    return torch.device(text)


_DECODERS: Final[Mapping[str, Callable[[list[Any], Sequence[fx.Node]], Any]]] = {
    "node": _node,
    "slice": _slice,
    "dict": _dict,
    "device": _device,
    "tuple": lambda rest, nodes: tuple(decode(v, nodes) for v in rest),
    "list": lambda rest, nodes: [decode(v, nodes) for v in rest],
    "ellipsis": lambda rest, nodes: ...,
    "float": lambda rest, nodes: _named("float", rest, _NON_FINITE),
}
