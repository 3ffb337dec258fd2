"""Lazy attribute loading for packages (PEP 562).

    if TYPE_CHECKING:
        from esper.nissa.hub import TelemetryHub as TelemetryHub
    else:
        __getattr__, __dir__, __all__ = attach(__name__)

The imports are the one list of names: type checkers read them, and so does `attach`, from the
source. `__getattr__` is hidden from type checkers: to them it would make every misspelt name valid.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from inspect import getsource


def attach(module: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for the names under `if TYPE_CHECKING`."""
    home_of = _imports_of(getsource(sys.modules[module]))
    offered = sorted(home_of)
    return partial(_load, module, home_of), offered.copy, offered


def _imports_of(source: str) -> dict[str, str]:
    """Name -> module, of the imports of the first `if` statement."""
    guard = next(node for node in ast.parse(source).body if isinstance(node, ast.If))
    return {
        name.name: str(node.module)
        for node in guard.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }


def _load(module: str, home_of: Mapping[str, str], name: str) -> object:
    if name not in home_of:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    value: object = getattr(import_module(home_of[name]), name)
    setattr(sys.modules[module], name, value)  # found without this call the next time
    return value
