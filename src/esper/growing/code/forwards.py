"""The `forward` of a module, from the steps of its scope."""

from __future__ import annotations

import keyword
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from torch import fx

from esper.growing.code.docs import INDENT
from esper.growing.code.expressions import ATOM, Expression, Imports, call, literal
from esper.growing.code.scopes import Scope, is_flag, is_free

MAX_COLUMNS: Final = 76
"""Of an expression that other ones are written into."""
_NAMES: Final = ("x", "y", "z", "u", "v", "w", "h", "g", "a", "b", "c", "d", "e", "f")
_SIZE_NAMES: Final = ("n", "m", "d", "size")
_PART_NAMES: Final = ("q", "k", "v")
_SIZES: Final = ("size", "dim", "numel")
_CHOICE: Final = 10
"""How tightly `a if b else c` binds."""


@dataclass(frozen=True, eq=False)
class _Loop:
    """Modules of a list that are called one after the other."""

    path: str
    """Of the list."""
    first: int
    last: int
    whole: bool
    leaves: bool
    """They are layers of torch's."""
    source: fx.Node


@dataclass(eq=False)
class _Statement:
    """A step, with the steps before it that are written into it."""

    value: fx.Node
    step: fx.Node | Scope | _Loop | None
    """None: the return."""
    reads: list[fx.Node] = field(default_factory=list)
    """With repetition, in the order of the text."""
    inlined: int | None = None
    """Place in `reads` of the first one that is read by what is written into it."""
    parts: list[fx.Node | None] = field(default_factory=list)
    """What the value is unpacked into; None: not used."""

    @property
    def values(self) -> list[fx.Node]:
        """What gets a name."""
        return [part for part in self.parts if part] if self.parts else [self.value]


def forward_of(
    scope: Scope,
    access: Callable[[str], str],
    imports: Imports,
    lengths: Mapping[fx.Node, int],
) -> tuple[list[str], list[str]]:
    """Names of its arguments, and its lines.

    `access`: the expression of a module or tensor, by its path; `lengths`: of tuples.
    """
    return _Writer(scope, access, imports, lengths).write()


class _Writer:
    def __init__(
        self,
        scope: Scope,
        access: Callable[[str], str],
        imports: Imports,
        lengths: Mapping[fx.Node, int],
    ) -> None:
        self._scope, self._access, self._imports = scope, access, imports
        self._lengths = lengths
        self._inlined: dict[fx.Node, _Statement] = {}
        self._names: dict[fx.Node, str] = {}
        self._given: set[str] = set()
        """Names of arguments that stay theirs."""

    def write(self) -> tuple[list[str], list[str]]:
        """Names of the arguments, and the lines."""
        arguments = self._arguments()
        return arguments, self._lines(self._merged())

    # ---- which steps become one -----------------------------------------------------------

    def _merged(self) -> list[_Statement]:
        """Statements, with what is read once written where it is read."""
        steps = [_statement(step) for step in self._scope.steps]
        steps.append(_Statement(self._scope.output, None, [self._scope.output]))
        uses = Counter(node for one in steps for node in one.reads)
        steps = self._with_loops(self._unpacked(steps, uses), uses)
        found: list[_Statement] = []
        for one in steps:
            while found and self._can_inline(found[-1], one, uses):
                before = found.pop()
                self._inlined[before.value] = before
                place = one.reads.index(before.value)
                one.reads[place : place + 1] = before.reads
                one.inlined = place
            found.append(one)
        return found

    def _can_inline(self, before: _Statement, one: _Statement, uses: Counter[fx.Node]) -> bool:
        if before.parts or isinstance(before.step, _Loop) or isinstance(one.step, _Loop):
            return False
        if uses[before.value] != 1 or before.value not in one.reads:
            return False
        if one.inlined is not None and one.reads.index(before.value) > one.inlined:
            return False  # it would be computed later than now
        self._inlined[before.value] = before
        text, _ = self._expression(one)
        del self._inlined[before.value]
        return len(text) <= MAX_COLUMNS

    def _unpacked(self, steps: list[_Statement], uses: Counter[fx.Node]) -> list[_Statement]:
        """Unpack tuples whose items are all that is read of them."""
        dropped: set[fx.Node] = set()
        for one in steps:
            length = self._lengths.get(one.value, 0)
            items = [user for user in steps if one.value in user.reads]
            numbers = [_item(user.step, one.value) for user in items]
            if not 2 <= length <= 8 or None in numbers or len(set(numbers)) < len(numbers):
                continue
            if len(items) > 1 and all(uses[user.value] for user in items):
                by_number = dict(zip(numbers, items, strict=True))
                found = [by_number.get(n) or by_number.get(n - length) for n in range(length)]
                one.parts = [None if item is None else item.value for item in found]
                dropped |= {user.value for user in items}
        return [one for one in steps if one.step is None or one.value not in dropped]

    def _with_loops(self, steps: list[_Statement], uses: Counter[fx.Node]) -> list[_Statement]:
        """Calls of the modules of a list, one after the other, as a loop."""
        found: list[_Statement] = []
        place = 0
        while place < len(steps):
            run = _run_length(steps[place:], uses)
            if run < 2:
                found.append(steps[place])
                place += 1
                continue
            first, last = steps[place], steps[place + run - 1]
            (folder, start), (_, stop) = _numbered(first), _numbered(last)
            whole = start == 0 and not self._has(f"{folder}.{stop + 1}")
            leaves = isinstance(first.step, fx.Node)
            loop = _Loop(folder, start, stop, whole, leaves, first.reads[0])
            found.append(_Statement(last.value, loop, list(first.reads)))
            place += run
        return found

    def _has(self, path: str) -> bool:
        prefixes = tuple(str(n.target) for n in self._scope.nodes if n.op == "call_module")
        return any(f"{target}.".startswith(f"{path}.") for target in prefixes)

    # ---- text -----------------------------------------------------------------------------

    def _expression(self, one: _Statement) -> Expression:
        step = one.step
        if step is None:
            return self._render(one.value)
        assert not isinstance(step, _Loop)
        if isinstance(step, Scope):
            given = ", ".join(self._render(node)[0] for node in step.inputs)
            return f"{self._access(step.path)}({given})", ATOM
        if step.op == "call_module":
            given = ", ".join(_given(step, self._render))
            return f"{self._access(str(step.target))}({given})", ATOM
        if step.target is operator.mul and _is_flag(step.args[0]):
            return f"{literal(step.args[1])[0]} if self.training else 0.0", _CHOICE
        return call(step, self._render, self._imports)

    def _render(self, node: fx.Node) -> Expression:
        if is_flag(node):
            return "self.training", ATOM
        if is_free(node):
            return self._access(str(node.target)), ATOM
        if node in self._inlined:
            return self._expression(self._inlined[node])
        return self._names.get(node, "x"), ATOM

    def _lines(self, statements: Sequence[_Statement]) -> list[str]:
        last = {node: place for place, one in enumerate(statements) for node in one.reads}
        lines = []
        for place, one in enumerate(statements):
            if isinstance(one.step, _Loop):
                lines += self._loop_lines(one, one.step, place, last)
                continue
            text, binds = self._expression(one)
            if one.step is None:
                lines.append(f"return {text}")
            elif binds == 0 or not any(value in last for value in one.values):
                lines.append(text)
            else:
                lines.append(f"{self._assigned(one, place, last)} = {text}")
        return lines

    def _loop_lines(
        self, one: _Statement, loop: _Loop, place: int, last: Mapping[fx.Node, int]
    ) -> list[str]:
        source = self._names[loop.source]
        at = self._access(loop.path)
        part = at if loop.whole else f"{at}[{loop.first or ''}:{loop.last + 1}]"
        name = self._names[one.value] = self._name(one, place, last)
        before = [] if name == source else [f"{name} = {source}"]
        word = "layer" if loop.leaves else "block"
        return [*before, f"for {word} in {part}:", f"{INDENT}{name} = {word}({name})"]

    # ---- names ----------------------------------------------------------------------------

    def _arguments(self) -> list[str]:
        for node in self._scope.inputs:
            given = str(node.target) if node.op == "placeholder" else ""
            used = set(self._names.values())
            self._names[node] = given if _is_name(given) else self._fresh(used)
        found = [self._names[node] for node in self._scope.inputs]
        self._given = {name for name in found if name not in _NAMES}
        return found

    def _assigned(self, one: _Statement, place: int, last: Mapping[fx.Node, int]) -> str:
        """The left side of an assignment."""
        if not one.parts:
            self._names[one.value] = name = self._name(one, place, last)
            return name
        held = self._held(place, last)
        wanted = _SIZE_NAMES if _is_size(one.value) else _PART_NAMES
        names = []
        for part in one.parts:
            if part is None:
                names.append("_")
                continue
            self._names[part] = name = self._fresh(held, wanted)
            held.add(name)
            names.append(name)
        return ", ".join(names)

    def _held(self, place: int, last: Mapping[fx.Node, int]) -> set[str]:
        return {name for node, name in self._names.items() if last.get(node, -1) > place}

    def _name(self, one: _Statement, place: int, last: Mapping[fx.Node, int]) -> str:
        """The name of a value that ends here, if it is replaced; else a free one."""
        held = self._held(place, last) | self._given
        if _is_size(one.value):
            return self._fresh(held, _SIZE_NAMES)
        if isinstance(one.step, fx.Node) and one.step.args and _is_flag(one.step.args[0]):
            return self._fresh(held, ("p",))
        for node in one.reads:
            named = node.op == "placeholder" and self._names[node] != "x"
            ends = last[node] == place and not _is_size(node) and not named
            if ends and self._names[node] not in held:
                return self._names[node]
        step = one.step
        if isinstance(step, fx.Node) and step.op == "call_module":
            leaf = str(step.target).rpartition(".")[2]
            if leaf.isalpha() and len(leaf) <= 5 and _is_name(leaf) and leaf not in held:
                return leaf
        return self._fresh(held)

    def _fresh(self, held: set[str], wanted: tuple[str, ...] = _NAMES) -> str:
        return next(name for name in _all_names(wanted) if name not in held)


def _all_names(wanted: tuple[str, ...]) -> Iterator[str]:
    yield from wanted
    yield from _NAMES
    number = 1
    while True:
        yield f"x{number}"
        number += 1


def _is_name(text: str) -> bool:
    taken = ("self", "F", "nn", "torch", "math", "operator")
    return text.isidentifier() and not keyword.iskeyword(text) and text not in taken


def _is_flag(value: object) -> bool:
    return isinstance(value, fx.Node) and is_flag(value)


def _is_size(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in _SIZES
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return node.args[1] in ("shape", "ndim", "device", "dtype")
    first = node.args[0] if node.args else None
    numbers = (operator.getitem, operator.mul, operator.floordiv)
    return node.target in numbers and isinstance(first, fx.Node) and _is_size(first)


def _item(step: object, of: fx.Node) -> int | None:
    """Which item of a tuple a step reads, if that is all it does."""
    if not isinstance(step, fx.Node) or step.target is not operator.getitem:
        return None
    number = step.args[1]
    plain = step.args[0] is of and isinstance(number, int) and not isinstance(number, bool)
    return int(number) if plain else None  # type: ignore[arg-type]


def _numbered(one: _Statement) -> tuple[str, int]:
    """Folder and number of the module that a statement calls; -1: none."""
    step = one.step
    path = ""
    if isinstance(step, Scope):
        path = step.path
    elif isinstance(step, fx.Node) and step.op == "call_module" and not step.kwargs:
        path = str(step.target)
    folder, _, leaf = path.rpartition(".")
    return (folder, int(leaf)) if folder and leaf.isdigit() else ("", -1)


def _run_length(steps: Sequence[_Statement], uses: Counter[fx.Node]) -> int:
    """How many statements call the modules of a list, each with the value of the one before."""
    folder, number = _numbered(steps[0])
    if number < 0 or len(steps[0].reads) != 1:
        return 0
    count = 1
    for before, one in pairwise(steps):
        follows = _numbered(one) == (folder, number + count) and one.reads == [before.value]
        if not follows or uses[before.value] != 1 or before.parts or one.parts:
            break
        count += 1
    return count


def _statement(step: fx.Node | Scope) -> _Statement:
    if isinstance(step, Scope):
        return _Statement(step.output, step, list(step.inputs))
    reads: list[fx.Node] = []

    def note(node: fx.Node) -> fx.Node:
        if not is_free(node):
            reads.append(node)
        return node

    fx.node.map_arg((step.args, dict(step.kwargs)), note)
    return _Statement(step, step, reads)


def _given(node: fx.Node, render: Callable[[fx.Node], Expression]) -> list[str]:
    """Arguments of a module's call."""
    given = [literal(value, render)[0] for value in node.args]
    return given + [f"{name}={literal(v, render)[0]}" for name, v in node.kwargs.items()]
