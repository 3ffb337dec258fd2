"""Registry of blueprints.

To add one, write a module in this folder with one decorator:

    @blueprint("my_seed", topologies=("cnn",), min_width=1)
    class MySeed(nn.Module):
        \"\"\"One line: what it computes.\"\"\"
        def __init__(self, width: int) -> None: ...

The module maps an activation to a delta of the same shape. Initially the delta must be tiny, and
every parameter must receive a gradient within two steps. Parameters and MACs are counted.

With `from_host=True` the class is called with a `HostSegment` instead of the width: the nearest
segment with parameters before the slot. It raises `EsperError` if it cannot be built from it; the
slot then refuses it with that reason. Its attribute `inherited` maps names of its tensors to the
host's: at germination these are copied from the member's current host, buffers included
(twin.py). `esper.grow`, whose models have no segments, does not offer it.

With `spatial=True` the class is called with the width and `space`, the number of axes behind the
channels: 2 for images, 1 for signals.

With `reads_ahead=True` it is refused by sequence hosts, unless they have an attribute `causal` that
is False: a seed that sees later positions would give a language model the answers.

A method `seed_steps` makes it fast on a GPU: it gives the seed as a chain of steps with kernels, so
that all members' seeds change their rows in place (norm.py has a short one). Without it seeds run
on copies of their rows by `forward`.

It is found without another entry; a task offers it once its `TaskSpec.blueprints` names it
(built-in tasks: tasks/hosts.py).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, TypeVar

from torch import Tensor, nn

from esper.kasmina.layers.host_checks import axes_after_channels
from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.slots import TOPOLOGIES, InjectionSpec, Topology

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True, slots=True, eq=False)
class HostSegment:
    """The nearest segment with parameters before a slot, and what is known about the slot."""

    module: nn.Module
    """On the CPU, with arbitrary weights; copy it before changing anything."""
    index: int
    """Position in the host's chain."""
    names: Mapping[str, str]
    """Names of its tensors -> their names in the host."""
    slot: InjectionSpec
    topology: Topology
    sample: Tensor
    """Two small activations of the slot, on the CPU."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """Describes a kind of seed."""

    name: str
    topologies: tuple[Topology, ...]
    min_width: int
    """Minimum number of channels."""
    factory: Callable[..., nn.Module]
    """Width (or host segment) -> module that maps an activation to a delta of the same shape."""
    description: str
    from_host: bool = False
    """Whether the factory is called with a `HostSegment` instead of the width."""
    reads_ahead: bool = False
    """Whether its output at a position depends on later ones; refused by hosts that are causal."""

    @property
    def built_in(self) -> bool:
        """Whether it is built in, and so known to work in any slot it fits."""
        if self.from_host:  # made of a user's modules, perhaps
            return False
        return self.definition[0].startswith("esper.kasmina.")

    @property
    def definition(self) -> tuple[str, str]:
        """Module and qualified name of its class."""
        made_by = getattr(self.factory, "func", self.factory)  # a `partial` if it is spatial
        return getattr(made_by, "__module__", ""), getattr(made_by, "__qualname__", "")


class BlueprintRegistry:
    """All blueprints by topology and name (`attention` differs between CNN and GPT)."""

    _entries: ClassVar[dict[tuple[Topology, str], Blueprint]] = {}
    _discovered: ClassVar[bool] = False

    @classmethod
    def register(cls, entry: Blueprint) -> None:
        """Add a blueprint; raises if its name is taken in a topology.

        The same class once more replaces itself: its file or notebook cell was run again.
        """
        if not entry.topologies or any(t not in TOPOLOGIES for t in entry.topologies):
            raise EsperError(
                f"blueprint {entry.name!r} topologies {entry.topologies!r}: "
                f"choose from {', '.join(TOPOLOGIES)}"
            )
        for topology in entry.topologies:
            known = cls._entries.get((topology, entry.name))
            if known is not None and known.definition != entry.definition:
                raise EsperError(
                    f"blueprint {entry.name!r} is already registered for {topology} hosts: "
                    f"choose another name"
                )
        cls._entries |= {(topology, entry.name): entry for topology in entry.topologies}

    @classmethod
    def unregister(cls, name: str) -> None:
        """Remove a blueprint."""
        found = [key for key in cls._entries if key[1] == name]
        if not found:
            raise unknown_name("blueprint", name, sorted({n for _, n in cls._entries}))
        for key in found:
            del cls._entries[key]

    @classmethod
    def get(cls, name: str, topology: Topology) -> Blueprint:
        """Return a blueprint by name; raises with the closest name if unknown."""
        if name not in cls.names(topology):
            raise unknown_name("blueprint", name, cls.names(topology), f"for {topology} hosts")
        return cls._entries[topology, name]

    @classmethod
    def names(cls, topology: Topology) -> tuple[str, ...]:
        """Return all names for a topology, sorted."""
        cls._discover()
        return tuple(sorted(name for at, name in cls._entries if at == topology))

    @classmethod
    def _discover(cls) -> None:
        """Import every module of this folder once, which registers their blueprints."""
        if cls._discovered:
            return
        cls._discovered = True
        package = importlib.import_module("esper.kasmina.blueprints")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")


def blueprint(
    name: str,
    *,
    topologies: tuple[Topology, ...],
    min_width: int = 1,
    from_host: bool = False,
    reads_ahead: bool = False,
    spatial: bool = False,
) -> Callable[[type[M]], type[M]]:
    """Decorator that registers a module class with its docstring.

    The class is called with the width (and `space`, if `spatial`), or with a `HostSegment` if
    `from_host`.
    """

    def add(cls: type[M]) -> type[M]:
        description = (cls.__doc__ or "").strip().split("\n")[0]
        kinds: list[tuple[tuple[Topology, ...], Callable[..., nn.Module]]] = [(topologies, cls)]
        if spatial:
            kinds = [((t,), partial(cls, space=axes_after_channels(t))) for t in topologies]
        for fitting, factory in kinds:
            entry = Blueprint(
                name, fitting, min_width, factory, description, from_host, reads_ahead
            )
            BlueprintRegistry.register(entry)
        return cls

    return add
