"""The `forward` of a module, from the steps of its scope."""

from __future__ import annotations

import keyword
import operator
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Final

from torch import fx

from esper.growing.code.expressions import Imports, arguments, call, tidy
from esper.growing.code.scopes import Scope, is_flag, is_free

_MAX_COLUMNS: Final = 76
"""Of an expression that other ones are written into."""
_NAMES: Final = ("x", "y", "z", "u", "v", "w")
_PARTS: Final = ("q", "k", "v")
"""Names of what a tensor is split into."""
_SIZES: Final = ("n", "m", "d", "e")
_TAKEN: Final = ("self", "F", "nn", "torch", "math", "operator")


@dataclass(eq=False)
class _Statement:
    """A step, with the steps before it that are written into it."""

    value: fx.Node
    step: fx.Node | Scope | None
    """None: the return."""
    reads: list[fx.Node]
    """With repetition, in the order of the text."""


def forward_of(
    scope: Scope, access: Callable[[str], str], imports: Imports
) -> tuple[list[str], list[str]]:
    """Names of its arguments, and its lines.

    `access`: the expression of a module or tensor, by its path.
    """
    return _Writer(scope, access, imports).write()


class _Writer:
    def __init__(self, scope: Scope, access: Callable[[str], str], imports: Imports) -> None:
        self._scope, self._access, self._imports = scope, access, imports
        self._items = {step for step in scope.steps if _is_item(step)}
        self._unpacked = {step: found for step in scope.steps if (found := self._parts_of(step))}
        """Step -> the items that it is unpacked into."""
        self._inlined: dict[fx.Node, _Statement] = {}
        self._names: dict[fx.Node, str] = {}

    def write(self) -> tuple[list[str], list[str]]:
        """Names of the arguments, and the lines."""
        for node in self._scope.inputs:
            given = str(node.target) if node.op == "placeholder" else ""
            usable = given.isidentifier() and not keyword.iskeyword(given)
            free = _free_name(self._names.values())
            self._names[node] = given if usable and given not in _TAKEN else free
        found = list(self._names.values())
        return found, self._lines(self._merged())

    def _merged(self) -> list[_Statement]:
        """Statements, with what is read once written where it is read, and nothing in between."""
        steps = [self._statement(step) for step in self._scope.steps if step not in self._items]
        output = self._scope.output
        steps.append(_Statement(output, None, [self._source(output)]))
        uses = Counter(node for one in steps for node in one.reads)
        found: list[_Statement] = []
        for one in steps:
            last = len(one.reads)  # what is written into it later must be computed earlier
            while found and uses[found[-1].value] == 1:
                before = found[-1]
                place = one.reads.index(before.value) if before.value in one.reads else last + 1
                if place > last or not self._fits(before, one):
                    break
                self._inlined[before.value] = found.pop()
                one.reads[place : place + 1] = before.reads
                last = place
            found.append(one)
        return found

    def _statement(self, step: fx.Node | Scope) -> _Statement:
        if isinstance(step, Scope):
            return _Statement(step.output, step, [self._source(node) for node in step.inputs])
        reads: list[fx.Node] = []

        def note(node: fx.Node) -> fx.Node:
            if not is_free(node):
                reads.append(self._source(node))
            return node

        fx.node.map_arg((step.args, dict(step.kwargs)), note)
        return _Statement(step, step, reads)

    def _source(self, node: fx.Node) -> fx.Node:
        """What is read for a value: of an item, the whole."""
        while node in self._items:
            (node,) = node.all_input_nodes
        return node

    def _parts_of(self, step: fx.Node | Scope) -> list[fx.Node]:
        """The items of a step, if they are the first ones, each once, and all that is read."""
        value = step.output if isinstance(step, Scope) else step
        found = sorted((user for user in value.users if user in self._items), key=_number)
        numbers = list(map(_number, found))
        whole = len(found) == len(value.users) > 1 and step not in self._items
        return found if whole and numbers == list(range(len(found))) else []

    def _fits(self, before: _Statement, one: _Statement) -> bool:
        self._inlined[before.value] = before
        text = tidy(self._text(one))
        del self._inlined[before.value]
        return len(text) <= _MAX_COLUMNS

    def _lines(self, statements: list[_Statement]) -> list[str]:
        last = {node: place for place, one in enumerate(statements) for node in one.reads}
        lines = []
        for place, one in enumerate(statements):
            text = self._text(one)
            if one.step is None:
                text = f"return {text}"
            elif one.value in last:
                held = [name for node, name in self._names.items() if last.get(node, -1) > place]
                parts = self._unpacked.get(one.step, [])
                for part in parts or [one.value]:
                    self._names[part] = _free_name(held, _names_of(one.value) if parts else _NAMES)
                    held.append(self._names[part])
                    last[part] = last[one.value]
                names = [self._names[part] for part in parts or [one.value]]
                names += ["*_"] * (bool(parts) and not _is_split(one.value, len(parts)))
                text = f"{', '.join(names)} = {text}"
            lines.append(tidy(text))
        return lines

    # ---- text -----------------------------------------------------------------------------

    def _text(self, one: _Statement) -> str:
        step = one.step
        if step is None:
            return self._render(one.value)
        if isinstance(step, Scope):
            given = ", ".join(map(self._render, step.inputs))
            return f"{self._access(step.path)}({given})"
        if step.op == "call_module":
            return f"{self._access(str(step.target))}({arguments(step, self._render)})"
        return call(step, self._render, self._imports)

    def _render(self, node: fx.Node) -> str:
        if is_flag(node):
            return "self.training"
        if is_free(node):
            return self._access(str(node.target))
        if node in self._items and node not in self._names:
            return call(node, self._render, self._imports)
        if node in self._inlined:
            return self._text(self._inlined[node])
        return self._names.get(node, "x")


def _free_name(held: Collection[str], wanted: Sequence[str] = _NAMES) -> str:
    names = chain(wanted, _NAMES, (f"x{number}" for number in count(1)))
    return next(name for name in names if name not in held)


def _is_item(step: fx.Node | Scope) -> bool:
    """Whether a step reads an item by its number, which is written wherever it is used."""
    if not isinstance(step, fx.Node) or step.target is not operator.getitem:
        return False
    return isinstance(step.args[0], fx.Node) and isinstance(step.args[1], int)


def _number(item: fx.Node) -> int:
    return int(item.args[1])  # type: ignore[arg-type]


def _names_of(value: fx.Node) -> Sequence[str]:
    """Names of the items of a value."""
    is_size = value.target == "size" or (value.target is getattr and value.args[1] == "shape")
    return _SIZES if is_size else _PARTS


def _is_split(value: fx.Node, count: int) -> bool:
    """Whether a value is known to have so many items."""
    name = getattr(value.target, "__name__", value.target)
    return name == "chunk" and value.args[1:2] == (count,)
