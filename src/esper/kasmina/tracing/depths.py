"""The user's model with more or fewer of its repeated blocks: `Depths(model, example).at(0.5)`.

Blocks are repeated where an `nn.Sequential` or `nn.ModuleList` holds equal children in a row, by
types and shapes, or equal groups of children (a linear layer and its activation). Blocks that are
left out are the last of a row; those that are added follow it, with initial weights of their own.
The block before a row, of the same type and other shapes (one that halves an image), counts as one
of it.

Whether a model can take another number of blocks is tried: it must run on the example, return the
same shape, and use all of its parameters.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from torch import nn

from esper.kasmina.layers.initialisation import build
from esper.kasmina.tracing.host import Factory, factory_of
from esper.kasmina.tracing.inputs import Inputs, Raw
from esper.kasmina.tracing.tracer import kept_random_state
from esper.kasmina.tracing.width_rules import int_attributes
from esper.kasmina.tracing.widths import Scaling, plain_kernels, train_once, why_not
from esper.leyline.errors import EsperError

Model = nn.Module | Factory
MAX_PERIOD: Final = 8
"""Children of one block, at most, where blocks are no modules of their own."""
_SAMPLES: Final = 3
_NUMBERS: Final = re.compile(r"layer|block|depth", re.IGNORECASE)
"""Names of integers that count blocks."""
_Signature = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Stack:
    """A row of equal blocks."""

    path: str
    """Of the container."""
    first: int
    """Index of the first child."""
    period: int
    """Children of a block."""
    count: int
    """Blocks."""
    before: int = 0
    """1: the child before them is a block, too, of other shapes."""

    def at(self, depth: float) -> int:
        """Blocks at a multiple of the number there are; one of all is left, at least.

        >>> _Stack("blocks", 0, 1, 3).at(0.5), _Stack("stage", 1, 1, 2, 1).at(2.0)
        (2, 5)
        """
        whole = math.floor(depth * (self.count + self.before) + 0.5)
        return max(1 - self.before, whole - self.before)

    @property
    def end(self) -> int:
        """Index after the last child."""
        return self.first + self.count * self.period


def _find_stacks(model: nn.Module) -> tuple[_Stack, ...]:
    """Rows of two or more equal blocks, the outermost, and single ones of the same types."""
    rows: dict[str, list[_Stack]] = {}
    tied, inside = _tied(model), list[str]()
    for path, module in model.named_modules():
        listed = isinstance(module, nn.Sequential | nn.ModuleList)
        if listed and not any(f"{path}.".startswith(f"{one}.") for one in inside):
            rows[path] = _rows(path, list(module._modules.values()), tied)
            names = list(module._modules)
            prefix = f"{path}." if path else ""
            inside += [prefix + n for one in rows[path] for n in names[one.first : one.end]]
    kinds = {
        type(_children(model, one.path)[one.first])
        for found in rows.values()
        for one in found
        if one.period == 1
    }
    return tuple(
        stack
        for path, found in rows.items()
        for stack in _with_singles(path, _children(model, path), found, kinds)
    )


def _children(model: nn.Module, path: str) -> list[nn.Module | None]:
    return list(model.get_submodule(path)._modules.values())


def _rows(path: str, children: Sequence[nn.Module | None], tied: set[int]) -> list[_Stack]:
    """Rows of equal blocks, from left to right."""
    signs = [_signature(child, tied) for child in children]
    found, at = list[_Stack](), 0
    while at < len(signs):
        count, period = _repeats(signs, at)
        if count < 2:
            at += 1
            continue
        free = not found or found[-1].end < at
        same = period == 1 and at > 0 and type(children[at - 1]) is type(children[at])
        found.append(_Stack(path, at, period, count, int(free and same)))
        at = found[-1].end
    return found


def _repeats(signs: Sequence[_Signature], at: int) -> tuple[int, int]:
    """(Number, length) of the equal groups that begin at an index and reach farthest."""
    found = [(1, 1)]
    for period in range(1, min(MAX_PERIOD, (len(signs) - at) // 2) + 1):
        group, count = signs[at : at + period], 1
        while signs[at + count * period : at + (count + 1) * period] == group:
            count += 1
        if count > 1 and any(shapes for _, shapes, *_ in group):
            found.append((count, period))
    return max(found, key=lambda one: (one[0] * one[1], one[0]))


def _signature(child: nn.Module | None, tied: set[int]) -> _Signature:
    """Equal for two modules of the same types and shapes; no two with tied weights are equal."""
    if child is None or any(id(p) in tied for p in child.parameters()):
        return object(), ()
    shapes = [(name, tuple(p.shape), p.requires_grad) for name, p in child.named_parameters()]
    parts = [(n, type(m), getattr(m, "stride", None)) for n, m in child.named_modules()]
    buffers = [(name, tuple(value.shape)) for name, value in child.named_buffers()]
    return tuple(parts), tuple(shapes), tuple(buffers)


def _tied(model: nn.Module) -> set[int]:
    """Ids of the parameters that a model holds in several places."""
    every = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    return {one for one, times in every.items() if times > 1}


def _with_singles(
    path: str, children: Sequence[nn.Module | None], rows: Sequence[_Stack], kinds: set[type]
) -> list[_Stack]:
    """The rows of a container, and blocks that follow one of their type, as in [2, 2, 2, 2]."""
    taken = {index for one in rows for index in range(one.first - one.before, one.end)}
    pairs = itertools.pairwise(enumerate(children))
    singles = [
        _Stack(path, index, 1, 1, 1)
        for (before, other), (index, child) in pairs
        if type(child) in kinds and type(other) is type(child) and not {before, index} & taken
    ]
    return sorted((*rows, *singles), key=lambda one: one.first)


class Depths:
    """A model at other numbers of its blocks."""

    def __init__(self, model: Model, example: Raw, output: str | int | None = None) -> None:
        """See `trace_model`; the model is not changed."""
        self._model, self._example, self._output = model, example, output
        with kept_random_state():
            self._factory = factory_of(model)
            base = build(self._factory, 0, "model").cpu()
            self._name = type(base).__name__
            self._inputs = Inputs.of(base, example)
            self.stacks = _find_stacks(base)

    def at(self, depth: float) -> Model:
        """The model with a multiple of its blocks; raises if it cannot have another number.

        An instance keeps the weights of the blocks that stay.
        """
        reason = "it repeats no block of an nn.Sequential or nn.ModuleList, or too few"
        for stacks in self._choices():
            if all(one.at(depth) == one.count for one in stacks):
                continue
            with kept_random_state(), plain_kernels():
                found = self._attempt(stacks, depth)
            if not isinstance(found, str):
                return found
            reason = found
        raise EsperError(f"{self._name} cannot have {depth:g} times its blocks: {reason}")

    def _choices(self) -> list[tuple[_Stack, ...]]:
        """Stacks to change together, tried in order: one that cannot change stops them all."""
        rows = tuple(one for one in self.stacks if one.count > 1)
        longest = tuple(sorted(rows, key=lambda one: -one.count)[:1])
        return [c for c, _ in itertools.groupby((self.stacks, rows, longest)) if c]

    def _attempt(self, stacks: Sequence[_Stack], depth: float) -> Model | str:
        """The model with other numbers of blocks, if it runs and trains; else why not."""

        def deepened() -> nn.Module:
            return _restack(self._factory().cpu(), stacks, depth, self._fresh)

        try:
            unused_before, shape_before = self._given
            missing, shape = self._run(build(deepened, 0, "model"))
        except Exception as error:
            return why_not(error)
        known = {_place(name, stacks) for name in unused_before}
        unused = [name for name in sorted(missing) if _place(name, stacks) not in known]
        if shape != shape_before:
            return f"its output becomes {shape} instead of {shape_before}"
        if unused:
            return f"no gradient reaches {unused[0]}"
        return build(deepened, 0) if isinstance(self._model, nn.Module) else deepened

    @cached_property
    def _given(self) -> tuple[set[str], tuple[int, ...]]:
        return self._run(build(self._factory, 0, "model").cpu())

    def _run(self, model: nn.Module) -> tuple[set[str], tuple[int, ...]]:
        """Names of the parameters that a batch gives no gradient, and the shape of the output."""
        values = self._inputs.batch(self._example, _SAMPLES)
        out, missing, _ = train_once(model, self._inputs, values, self._output)
        return missing, tuple(out.shape)

    @cached_property
    def _fresh(self) -> Factory:
        """Builds a model with initial weights, from torch's global generator."""
        if not isinstance(self._model, nn.Module):
            return self._factory
        return Scaling(self._model, self._example, self._output).at(1.0).factory


def _place(name: str, stacks: Sequence[_Stack]) -> tuple[str, ...]:
    """A parameter's name without the index of its block."""
    for stack in stacks:
        prefix = f"{stack.path}." if stack.path else ""
        if name.startswith(prefix):
            return stack.path, name.removeprefix(prefix).partition(".")[2]
    return (name,)


def _restack(
    model: nn.Module, stacks: Sequence[_Stack], depth: float, fresh: Callable[[], nn.Module]
) -> nn.Module:
    """Change the numbers of blocks of a model; blocks that are added come from fresh ones."""
    donors = list[nn.Module]()
    counts = {one.count + one.before: one.at(depth) + one.before for one in stacks}
    for path, name, value in list(int_attributes(model)):
        if value in counts and _NUMBERS.search(name):
            setattr(model.get_submodule(path), name, counts[value])
    for stack in reversed(stacks):  # indices of those before it stay
        container = model.get_submodule(stack.path)
        children = list(container._modules.items())
        counters = _counters([_block(container, stack, n) for n in range(stack.count)])
        wanted = stack.at(depth)
        del children[stack.first + wanted * stack.period : stack.end]
        while len(donors) * stack.count < wanted - stack.count:
            donors.append(fresh().cpu())
        for place in range(stack.count, wanted):
            donor = donors[place // stack.count - 1].get_submodule(stack.path)
            block = _block(donor, stack, place % stack.count)
            for index, first in counters.items():
                owner, name, _ = list(_integers(block))[index]
                owner.__dict__[name] = first + place
            at = stack.first + place * stack.period
            children[at:at] = block
        container._modules.clear()
        container._modules.update(_named(children))
    return model


_Children = list[tuple[str, nn.Module | None]]


def _block(container: nn.Module, stack: _Stack, number: int) -> _Children:
    first = stack.first + number * stack.period
    return list(container._modules.items())[first : first + stack.period]


def _counters(blocks: Sequence[_Children]) -> dict[int, int]:
    """Integers that count the blocks of a row: index among those of a block -> the first value."""
    given = [[value for _, _, value in _integers(block)] for block in blocks]
    if len(blocks) < 2 or len(set(map(len, given))) > 1:
        return {}
    return {
        index: values[0]
        for index, values in enumerate(zip(*given, strict=True))
        if list(values) == list(range(values[0], values[0] + len(blocks)))
    }


def _integers(children: _Children) -> Iterator[tuple[nn.Module, str, int]]:
    """Integers that the modules of a block hold."""
    for _, child in children:
        for module in child.modules() if child is not None else ():
            for name, value in module.__dict__.items():
                if type(value) is int:
                    yield module, name, value


def _named(children: _Children) -> dict[str, nn.Module | None]:
    """Children by their names: numbers count anew, other names are kept apart."""
    if all(name.isdigit() for name, _ in children):
        return {str(index): child for index, (_, child) in enumerate(children)}
    found: dict[str, nn.Module | None] = {}
    for name, child in children:
        free = (f"{name}_{number}" for number in itertools.count(2))
        found[name if name not in found else next(n for n in free if n not in found)] = child
    return found
