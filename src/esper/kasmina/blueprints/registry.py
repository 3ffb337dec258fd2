"""Which seeds can be grown: one registry, one entry per blueprint.

Adding one is one file in this folder and one decorator:

    @blueprint("my_seed", topologies=("cnn",), min_width=1)
    class MySeed(nn.Module):
        \"\"\"One line: what it computes.\"\"\"
        def __init__(self, width: int) -> None: ...

The module maps an activation to a delta of the same shape. At birth the delta is tiny, and every
parameter receives a gradient within two steps. Parameters and MACs are counted, never written down.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from torch import nn

from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.slots import TOPOLOGIES, Topology

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The recipe of a seed."""

    name: str
    topologies: tuple[Topology, ...]
    min_width: int
    """Smallest number of channels the seed works on."""
    factory: Callable[[int], nn.Module]
    """Width -> a module that maps an activation to a delta of the same shape."""
    description: str

    def misfit(self, topology: Topology, width: int) -> str | None:
        """Why this blueprint cannot stand in such a slot, or None if it can."""
        if topology not in self.topologies:
            return f"is for {' and '.join(self.topologies)} hosts, this one is {topology}"
        if width < self.min_width:
            return f"needs a width of at least {self.min_width}, the slot has {width}"
        return None


class BlueprintRegistry:
    """All blueprints by name."""

    _entries: ClassVar[dict[str, Blueprint]] = {}
    _discovered: ClassVar[bool] = False

    @classmethod
    def register(cls, entry: Blueprint) -> None:
        """Add a blueprint; a name can be taken once."""
        if entry.name in cls._entries:
            raise EsperError(f"blueprint {entry.name!r} is already registered: choose another name")
        if not entry.topologies or any(t not in TOPOLOGIES for t in entry.topologies):
            raise EsperError(
                f"blueprint {entry.name!r} topologies {entry.topologies!r}: "
                f"choose from {', '.join(TOPOLOGIES)}"
            )
        cls._entries[entry.name] = entry

    @classmethod
    def unregister(cls, name: str) -> None:
        """Forget a blueprint (a user's own, after an experiment)."""
        cls.get(name)
        del cls._entries[name]

    @classmethod
    def get(cls, name: str, where: str = "") -> Blueprint:
        """The blueprint of that name, or an error with the nearest one."""
        cls._discover()
        if name not in cls._entries:
            raise unknown_name("blueprint", name, sorted(cls._entries), where)
        return cls._entries[name]

    @classmethod
    def names(cls, topology: Topology | None = None) -> tuple[str, ...]:
        """All names, or those that fit a topology, sorted."""
        cls._discover()
        return tuple(
            sorted(
                n for n, b in cls._entries.items() if topology is None or topology in b.topologies
            )
        )

    @classmethod
    def _discover(cls) -> None:
        """Import every module of this folder once, so their decorators run."""
        if cls._discovered:
            return
        cls._discovered = True
        package = importlib.import_module("esper.kasmina.blueprints")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")


def blueprint(
    name: str, *, topologies: tuple[Topology, ...], min_width: int = 1
) -> Callable[[type[M]], type[M]]:
    """Register a module class (called with the width) under `name`; its docstring describes it."""

    def add(cls: type[M]) -> type[M]:
        description = (cls.__doc__ or "").strip().split("\n")[0]
        BlueprintRegistry.register(Blueprint(name, topologies, min_width, cls, description))
        return cls

    return add
