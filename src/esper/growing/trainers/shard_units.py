"""Which parts of a network are gathered at a time when it is cut over ranks.

A unit of FSDP2 has its whole parameters while its `forward` runs, and at no other time. So a part
can be a unit if it is called once, and if nothing uses its parameters outside of that call: found
by running the network once on the CPU.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

SMALL: Final = 1_000_000
"""Parameters of a network that is one unit."""
PARTS: Final = 8
"""A unit has at most this part of the parameters, unless it has no parts of its own."""
CRUMBS: Final = 1_000
"""Parts with less than this part of the parameters are gathered with the network."""
HARMLESS: Final = frozenset(
    {"device", "dtype", "shape", "ndim", "requires_grad", "is_cuda", "layout", "names"}
)
"""Properties of a parameter that can be read while it is cut."""
PLAIN: Final = (Tensor, bool, int, float, str, type(None))
"""What outputs of a unit are made of."""
HARMLESS_CALLS: Final = frozenset({"size", "dim", "numel", "is_floating_point", "__hash__"})


class Calls:
    """How the parts of a network are called in one forward pass, and where parameters are used."""

    def __init__(self, network: nn.Module) -> None:
        self.count: Counter[nn.Module] = Counter()
        self.unfit: set[nn.Module] = set()
        """Parts that change their input, or with outputs in which FSDP2 finds no tensors."""
        self._inside: dict[int, set[nn.Module]] = {}
        """id of a parameter -> parts that run whenever it is used."""
        self._known = {id(param) for param in network.parameters()}
        self.running: list[nn.Module] = []
        self._given: list[list[tuple[Tensor, int]]] = []
        """What each of these was given, and the version of it."""

    def note_use(self, values: object) -> None:
        """Note parameters among the arguments of an operation."""
        for value in tree_leaves(values):
            if isinstance(value, Tensor) and id(value) in self._known:
                now = set(self.running)
                self._inside[id(value)] = self._inside.get(id(value), now) & now

    def enter(self, part: nn.Module, args: object) -> None:
        """Note that a part begins to run."""
        given = [(value, value._version) for value in tree_leaves(args) if torch.is_tensor(value)]
        self.count[part] += 1
        self.running.append(part)
        self._given.append(given)
        if isinstance(part, _DropoutNd) and part.inplace:  # changes it only in training
            changed = {id(value) for value, _ in given}
            for outer, mine in zip(self.running, self._given, strict=True):
                if any(id(value) in changed for value, _ in mine):
                    self.unfit.add(outer)

    def leave(self, part: nn.Module, args: object, out: object) -> None:
        """Note that it ends."""
        self.running.pop()
        changed = any(value._version != version for value, version in self._given.pop())
        if changed or not all(isinstance(leaf, PLAIN) for leaf in tree_leaves(out)):
            self.unfit.add(part)

    def can_be_unit(self, part: nn.Module) -> bool:
        """Whether its parameters are needed only while it runs."""
        if self.count[part] != 1 or part in self.unfit:
            return False
        return all(part in self._inside.get(id(p), {part}) for p in part.parameters())


class _Uses(TorchFunctionMode):
    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__":
            harmless = getattr(getattr(func, "__self__", None), "__name__", "") in HARMLESS
        else:
            harmless = name in HARMLESS_CALLS
        if not harmless:
            self._calls.note_use((args, kwargs))
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _watched(calls: Calls) -> Iterator[None]:
    hooks = [
        register_module_forward_pre_hook(calls.enter),
        register_module_forward_hook(calls.leave),
    ]
    try:
        with _Uses(calls):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def watch_calls(network: nn.Module, run: Callable[[], Tensor]) -> tuple[Calls, Tensor]:
    """How a network is called by `run`, and what that returns."""
    calls = Calls(network)
    with _watched(calls), torch.no_grad():
        out = run()
    return calls, out


def choose_units(network: nn.Module, calls: Calls, small: int = SMALL) -> list[nn.Module]:
    """Parts of a network that are units of their own, inner ones first; the rest is one, too."""
    total = _size(network)
    if total <= small:
        return []
    owners: dict[int, set[nn.Module]] = {}
    for part in network.modules():
        for param in part.parameters(recurse=False):
            owners.setdefault(id(param), set()).add(part)

    def alone(part: nn.Module) -> bool:
        """Whether all parameters of a part are its own, and of no other part."""
        inside = set(part.modules())
        return all(owners[id(param)] <= inside for param in part.parameters())

    def units(part: nn.Module) -> list[nn.Module]:
        if (size := _size(part)) * CRUMBS < total:
            return []
        fits = calls.can_be_unit(part) and alone(part)
        found = [] if fits and size * PARTS <= total else parts(part)
        return found or ([part] if fits else [])

    def parts(part: nn.Module) -> list[nn.Module]:
        return [unit for child in part.children() for unit in units(child)]

    return list(dict.fromkeys(parts(network)))


def _size(part: nn.Module) -> int:
    return sum(param.numel() for param in part.parameters())
