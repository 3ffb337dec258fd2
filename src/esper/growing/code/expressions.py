"""Calls of a graph as Python source.

Operands are put in brackets wherever they stand; `tidy` removes those that are not needed.
"""

from __future__ import annotations

import ast
import builtins
import math
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx

from esper.leyline.errors import EsperError

Render = Callable[[fx.Node], str]

_SIGNS: Final = {
    "pow": "**", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "matmul": "@",
    "add": "+", "sub": "-", "and_": "&", "xor": "^", "or_": "|", "eq": "==", "ne": "!=",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "is_": "is", "is_not": "is not",
}  # fmt: skip
_BINARY: Final[Mapping[Callable[..., Any], str]] = {
    getattr(operator, found): sign
    for name, sign in _SIGNS.items()
    for found in (name, f"i{name.rstrip('_')}")
    if hasattr(operator, found)
}
"""Operators, and those in place."""
_PREFIX: Final[Mapping[Callable[..., Any], str]] = {
    operator.neg: "-", operator.pos: "+", operator.invert: "~", operator.not_: "not ",
}  # fmt: skip
_MODULES: Final = {
    "F.": F, "torch.": torch, "torch.fft.": torch.fft, "torch.linalg.": torch.linalg,
    "torch.special.": torch.special, "math.": math, "operator.": operator, "": builtins,
}  # fmt: skip


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
    return name.isidentifier() and getattr(sys.modules.get(module), name, None) is thing


def tidy(statement: str) -> str:
    """A statement with no more brackets than it needs.

    >>> tidy("y = ((x) + (1)) * ((z))")
    'y = (x + 1) * z'
    """
    return _quoted(ast.unparse(ast.parse(statement)))


def _quoted(text: str) -> str:
    return text if '"' in text else text.replace("'", '"')


# ---- values -----------------------------------------------------------------------------------


def literal(value: Any, render: Render | None = None) -> str:
    """A value as source; `render`: of the nodes in it."""
    if isinstance(value, fx.Node):
        assert render is not None, "a constant refers to no node"
        return render(value)
    if isinstance(value, slice | dict | list | tuple):
        return _collection(value, render)
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, bool | str | int | float | None):
        return _quoted(repr(value))
    if value is ...:
        return "..."
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
        return str(value)
    raise EsperError(f"it is called with a value of type {type(value).__name__}")


def _collection(value: Any, render: Render | None) -> str:
    if isinstance(value, slice):
        ends = (literal(end, render) for end in (value.start, value.stop, value.step))
        return f"slice({', '.join(ends)})"
    if isinstance(value, dict):
        pairs = (f"{literal(k, render)}: {literal(v, render)}" for k, v in value.items())
        return "{" + ", ".join(pairs) + "}"
    inner = ", ".join(literal(v, render) for v in value)
    if isinstance(value, list):
        return f"[{inner}]"
    return f"({inner},)" if len(value) == 1 else f"({inner})"


def short(number: float) -> float:
    """A float32 in as few digits as it needs.

    >>> short(0.05000000074505806)
    0.05
    """
    return float(str(np.float32(number)))


def _index(value: Any, render: Render) -> str:
    """What is between the brackets of `x[...]`."""
    if isinstance(value, tuple) and value:
        return "".join(f"{_index(one, render)}," for one in value)
    if isinstance(value, slice):
        ends = (value.start, value.stop, value.step)
        return ":".join("" if end is None else literal(end, render) for end in ends)
    return literal(value, render)


# ---- calls ------------------------------------------------------------------------------------


def call(node: fx.Node, render: Render, imports: Imports) -> str:
    """The call of a function or method."""
    args, target = node.args, node.target
    if node.op == "call_method":
        return f"({literal(args[0], render)}).{target}({arguments(node, render, 1)})"
    assert callable(target)
    if target in _BINARY and len(args) == 2:
        left, right = (literal(value, render) for value in args)
        return f"({left}) {_BINARY[target]} ({right})"
    if target in _PREFIX:
        return f"{_PREFIX[target]}({literal(args[0], render)})"
    if target in (operator.getitem, operator.setitem):
        place = f"({literal(args[0], render)})[{_index(args[1], render)}]"
        return place if target is operator.getitem else f"{place} = {literal(args[2], render)}"
    if target is getattr and len(args) == 2 and str(args[1]).isidentifier():
        return f"({literal(args[0], render)}).{args[1]}"
    return f"{function_name(target, imports)}({arguments(node, render)})"


def arguments(node: fx.Node, render: Render, first: int = 0) -> str:
    """The arguments of a call, from one on."""
    given = [literal(value, render) for value in node.args[first:]]
    given += [f"{name}={literal(value, render)}" for name, value in node.kwargs.items()]
    return ", ".join(given)


def function_name(function: Any, imports: Imports) -> str:
    """How a script calls a function; one of the user's is imported."""
    name = getattr(function, "__name__", "")
    names = (name, name.rpartition("_")[2], name.replace("_", ""))
    public_first = sorted(names, key=lambda text: text.startswith("_"))
    for owner, module in _MODULES.items():
        for found in public_first:
            if getattr(module, found, None) is function:
                return f"{owner}{found}"
    return imports.add(function)
