"""Lazy attribute loading for packages (PEP 562).

    if TYPE_CHECKING:
        from esper.nissa.hub import TelemetryHub as TelemetryHub
    else:
        __getattr__, __dir__, __all__ = attach(__name__, {".hub": ("TelemetryHub",)})

Type checkers read the imports. `__getattr__` is hidden from them: to them it would make every
misspelt name valid.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module


def attach(
    module: str, names_in: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a module that re-exports lazily.

    `names_in`: module -> names it defines; a leading dot means relative to `module`.
    """
    home_of = {name: home for home, names in names_in.items() for name in names}
    offered = sorted(home_of)
    return partial(_load, module, home_of), offered.copy, offered


def _load(module: str, home_of: Mapping[str, str], name: str) -> object:
    if name not in home_of:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    value: object = getattr(import_module(home_of[name], module), name)
    setattr(sys.modules[module], name, value)  # found without this call the next time
    return value
