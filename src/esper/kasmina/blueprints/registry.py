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

    @property
    def ours(self) -> bool:
        """Whether it comes with Esper: those are known to work in any slot they fit."""
        return getattr(self.factory, "__module__", "").startswith("esper.kasmina.")

    def misfit(self, width: int) -> str | None:
        """Why this blueprint cannot stand in a slot of that width, or None if it can."""
        if width < self.min_width:
            return f"needs a width of at least {self.min_width}, the slot has {width}"
        return None


class BlueprintRegistry:
    """All blueprints, by topology and name: `attention` is one thing in a CNN, another in a GPT."""

    _entries: ClassVar[dict[tuple[Topology, str], Blueprint]] = {}
    _discovered: ClassVar[bool] = False

    @classmethod
    def register(cls, entry: Blueprint) -> None:
        """Add a blueprint; in each topology a name can be taken once."""
        if not entry.topologies or any(t not in TOPOLOGIES for t in entry.topologies):
            raise EsperError(
                f"blueprint {entry.name!r} topologies {entry.topologies!r}: "
                f"choose from {', '.join(TOPOLOGIES)}"
            )
        for topology in entry.topologies:
            if (topology, entry.name) in cls._entries:
                raise EsperError(
                    f"blueprint {entry.name!r} is already registered for {topology} hosts: "
                    f"choose another name"
                )
        cls._entries |= {(topology, entry.name): entry for topology in entry.topologies}

    @classmethod
    def unregister(cls, name: str) -> None:
        """Forget a blueprint (a user's own, after an experiment)."""
        found = [key for key in cls._entries if key[1] == name]
        if not found:
            raise unknown_name("blueprint", name, sorted({n for _, n in cls._entries}))
        for key in found:
            del cls._entries[key]

    @classmethod
    def get(cls, name: str, topology: Topology) -> Blueprint:
        """The blueprint of that name for such hosts, or an error with the nearest one."""
        if name not in cls.names(topology):
            raise unknown_name("blueprint", name, cls.names(topology), f"for {topology} hosts")
        return cls._entries[topology, name]

    @classmethod
    def names(cls, topology: Topology) -> tuple[str, ...]:
        """All names that fit such hosts, sorted."""
        cls._discover()
        return tuple(sorted(name for at, name in cls._entries if at == topology))

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
