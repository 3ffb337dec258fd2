"""Calls of a graph as Python source.

An expression is (text, how tightly it binds): an operand that binds less than its operator needs is
put in brackets.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from esper.kasmina.plain_saves.vocabulary import FUNCTION_NAMES
from esper.leyline.errors import EsperError

Expression = tuple[str, int]
Render = Callable[[fx.Node], Expression]
ATOM: Final = 100
_UNARY: Final = 80

_BINARY: Final[Mapping[Callable[..., Any], tuple[str, int]]] = {
    operator.pow: ("**", 85), operator.ipow: ("**", 85),
    operator.mul: ("*", 70), operator.imul: ("*", 70),
    operator.truediv: ("/", 70), operator.itruediv: ("/", 70),
    operator.floordiv: ("//", 70), operator.ifloordiv: ("//", 70),
    operator.mod: ("%", 70), operator.imod: ("%", 70),
    operator.matmul: ("@", 70), operator.imatmul: ("@", 70),
    operator.add: ("+", 60), operator.iadd: ("+", 60),
    operator.sub: ("-", 60), operator.isub: ("-", 60),
    operator.and_: ("&", 50), operator.iand: ("&", 50),
    operator.xor: ("^", 45), operator.or_: ("|", 40), operator.ior: ("|", 40),
    operator.eq: ("==", 30), operator.ne: ("!=", 30), operator.lt: ("<", 30),
    operator.le: ("<=", 30), operator.gt: (">", 30), operator.ge: (">=", 30),
    operator.is_: ("is", 30), operator.is_not: ("is not", 30),
}  # fmt: skip
_PREFIX: Final[Mapping[Callable[..., Any], str]] = {
    operator.neg: "-", operator.pos: "+", operator.invert: "~",
}  # fmt: skip
_MODULES: Final = {
    "torch": torch, "F": F, "torch.fft": torch.fft, "torch.linalg": torch.linalg,
    "torch.special": torch.special, "math": math,
}  # fmt: skip
_ALIASES: Final = {"torch.nn.functional": "F", "builtins": ""}


class Imports:
    """Import lines of a script, for what is not torch's."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}
        """Name -> line."""

    def add(self, thing: Any) -> str:
        """Import a class or function; returns its name. Raises if a script cannot."""
        module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
        if module in (None, "__main__", "builtins") or not _is_found(thing, str(module), name):
            raise EsperError(f"{name or thing!r} cannot be imported by another script")
        if str(module).partition(".")[0] == "esper":
            raise EsperError(f"{name} is a part of Esper")
        line = f"from {module} import {name}"
        if self.lines.setdefault(name, line) != line:
            raise EsperError(f"two of its parts are called {name}")
        return str(name)


def _is_found(thing: Any, module: str, name: str) -> bool:
    import sys

    return name.isidentifier() and getattr(sys.modules.get(module), name, None) is thing


# ---- values -----------------------------------------------------------------------------------


def literal(value: Any, render: Render | None = None) -> Expression:
    """A value as source; `render`: of the nodes in it."""
    if isinstance(value, fx.Node):
        assert render is not None, "a constant refers to no node"
        return render(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")', ATOM
    if isinstance(value, bool | str | type(None)):
        return _quoted(value), ATOM
    if isinstance(value, int | float):
        return repr(value), ATOM if value >= 0 else _UNARY
    if isinstance(value, list | tuple | dict | slice):
        return _collection(value, render), ATOM
    if value is ...:
        return "...", ATOM
    if isinstance(value, torch.device):
        return f'torch.device("{value}")', ATOM
    if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
        return str(value), ATOM
    raise EsperError(f"it is called with a value of type {type(value).__name__}")


def short(number: float) -> float:
    """A float32 in as few digits as it needs.

    >>> short(0.05000000074505806)
    0.05
    """
    return float(str(np.float32(number)))


def _quoted(value: bool | str | None) -> str:
    text = repr(value)
    return f'"{value}"' if text == f"'{value}'" and '"' not in text else text


def _collection(value: Any, render: Render | None) -> str:
    if isinstance(value, slice):
        ends = [_text(v, render) for v in (value.start, value.stop, value.step)]
        return f"slice({', '.join(ends)})"
    if isinstance(value, dict):
        pairs = [f"{_text(k, render)}: {_text(v, render)}" for k, v in value.items()]
        return "{" + ", ".join(pairs) + "}"
    inner = ", ".join(_text(v, render) for v in value)
    if isinstance(value, list):
        return f"[{inner}]"
    return f"({inner},)" if len(value) == 1 else f"({inner})"


def _text(value: Any, render: Render | None = None) -> str:
    return literal(value, render)[0]


def _bound(value: Any, render: Render, least: int) -> str:
    """An operand, in brackets if it binds less than it must."""
    text, binds = literal(value, render)
    return text if binds >= least else f"({text})"


def _index(value: Any, render: Render) -> str:
    """What is between the brackets of `x[...]`."""
    if isinstance(value, tuple) and value:
        inner = ", ".join(_index(v, render) for v in value)
        return f"{inner}," if len(value) == 1 else inner
    if isinstance(value, slice):
        start, stop = ("" if v is None else _text(v, render) for v in (value.start, value.stop))
        step = "" if value.step is None else f":{_text(value.step, render)}"
        return f"{start}:{stop}{step}"
    return _text(value, render)


# ---- calls ------------------------------------------------------------------------------------


def call(node: fx.Node, render: Render, imports: Imports) -> Expression:
    """The call of a function or method as an expression."""
    if node.op == "call_method":
        owner, *args = node.args
        return (
            f"{_bound(owner, render, ATOM)}.{node.target}({_arguments(args, node, render)})",
            ATOM,
        )
    assert callable(node.target)
    return _function(node.target, node, render, imports)


def _function(target: Any, node: fx.Node, render: Render, imports: Imports) -> Expression:
    args = node.args
    if target in _BINARY and len(args) == 2:
        sign, binds = _BINARY[target]
        left, right = (_bound(v, render, binds + k) for k, v in enumerate(args))
        return f"{left} {sign} {right}", binds
    if target in _PREFIX:
        return f"{_PREFIX[target]}{_bound(args[0], render, _UNARY)}", _UNARY
    if target is operator.not_:
        return f"not {_bound(args[0], render, _UNARY)}", 20
    if target is operator.getitem:
        return f"{_bound(args[0], render, ATOM)}[{_index(args[1], render)}]", ATOM
    if target is operator.setitem:
        place = f"{_bound(args[0], render, ATOM)}[{_index(args[1], render)}]"
        return f"{place} = {_text(args[2], render)}", 0
    if target is getattr and len(args) == 2 and str(args[1]).isidentifier():
        return f"{_bound(args[0], render, ATOM)}.{args[1]}", ATOM
    name = function_name(target, imports)
    return f"{name}({_arguments(args, node, render, _defaults(target))})", ATOM


def _arguments(
    args: Any, node: fx.Node, render: Render, defaults: Mapping[str, Any] | None = None
) -> str:
    known = defaults or {}
    given = [_text(value, render) for value in args]
    named = [
        f"{name}={_text(value, render)}"
        for name, value in node.kwargs.items()
        if not (name in known and _equal(known[name], value))
    ]
    return ", ".join([*given, *named])


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and not isinstance(one, Tensor | fx.Node) and one == other


def _defaults(function: Any) -> dict[str, Any]:
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # most of torch's functions in C++
        return {}
    return {one.name: one.default for one in found if one.default is not one.empty}


def function_name(function: Any, imports: Imports) -> str:
    """How a script calls a function; one of the user's is imported."""
    known = FUNCTION_NAMES.get(function)
    if known is not None:
        owner, _, name = known.rpartition(".")
        short = _ALIASES.get(owner, owner)
        return f"{short}.{name}" if short else name
    name = getattr(function, "__name__", "")
    for owner, module in _MODULES.items():
        for found in (name, name.rpartition("_")[2]):
            if getattr(module, found, None) is function:
                return f"{owner}.{found}"
    return imports.add(function)
