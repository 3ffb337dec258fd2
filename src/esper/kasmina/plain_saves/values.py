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

MAX_INTEGER: Final = 2**63
"""Magnitude of the largest number that torch knows."""
_DEVICES: Final = ("cpu", "cuda", "mps", "xpu")
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


def encode(value: object, numbers: Mapping[fx.Node, int]) -> Any:
    """Return a value as JSON; raises if it has no such form.

    `numbers`: of the nodes that it may refer to.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return ["float", str(value)]
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise EsperError(f"the number {shown(value)}")
    if value is None or isinstance(value, bool | str | int | float):
        return value
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


def decode(data: object, nodes: Sequence[fx.Node]) -> Any:
    """Return the value that was encoded; raises for anything else.

    `nodes`: those it may refer to.
    """
    if data is None or isinstance(data, bool | str | float):
        return data
    if isinstance(data, int) and abs(data) <= MAX_INTEGER:
        return data
    try:
        assert isinstance(data, list)
        kind, *rest = data
        return _DECODERS[kind](rest, nodes)
    except Exception as error:  # whatever torch and Python make of odd values
        raise EsperError(f"{shown(data)} is no argument") from error


def _index(number: object) -> int:
    """The place of an earlier call; a negative one would count from the end."""
    if type(number) is not int or number < 0:
        raise IndexError(number)
    return number


def _device(text: str) -> torch.device:
    device = torch.device(text)
    if device.type not in _DEVICES:
        raise ValueError(text)
    return device


def _several(rest: list[Any], nodes: Sequence[fx.Node]) -> list[Any]:
    return [decode(value, nodes) for value in rest]


_DECODERS: Final[Mapping[str, Callable[[list[Any], Sequence[fx.Node]], Any]]] = {
    "node": lambda rest, nodes: nodes[_index(*rest)],
    "slice": lambda rest, nodes: slice(*_several(rest, nodes)),
    "dict": lambda rest, nodes: {key: decode(value, nodes) for key, value in rest},
    "device": lambda rest, nodes: _device(*rest),
    "tuple": lambda rest, nodes: tuple(_several(rest, nodes)),
    "list": _several,
    "ellipsis": lambda rest, nodes: ...,
    "float": lambda rest, nodes: _NON_FINITE[rest[0]],
    "dtype": lambda rest, nodes: _TORCH_VALUES["dtype"][rest[0]],
    "memory_format": lambda rest, nodes: _TORCH_VALUES["memory_format"][rest[0]],
    "layout": lambda rest, nodes: _TORCH_VALUES["layout"][rest[0]],
}
