"""A network as classes: equal blocks of it share one, with what differs as its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, fx

from esper.growing.code.constants import ANGLES
from esper.growing.code.expressions import Imports
from esper.growing.code.forwards import forward_of
from esper.growing.code.parts import (
    GROUP,
    INDENT,
    Arguments,
    Call,
    Part,
    container,
    function,
    is_listed,
    is_name,
    layer_part,
    lines,
    numbered,
)
from esper.growing.code.scopes import Scope, drop_defaults, is_flag, plain_call, root_scope
from esper.kasmina.plain.plain_graph import KeepsModes

_TAKEN: Final = (
    "nn", "F", "torch", "np", "math", "train", "augment", "schedule", "evaluate", "Group",
)  # fmt: skip
"""Names that a script has besides those of its classes."""
_TensorPart = Callable[[str, Tensor], Call]
"""(path, tensor) -> how it is built."""


@dataclass(frozen=True, slots=True)
class NetworkCode:
    """Source of a network."""

    classes: list[str]
    """Lines."""
    construction: str
    """Expression that builds it."""


@dataclass(eq=False)
class _Block:
    """A scope with what it is built from."""

    scope: Scope
    parts: dict[str, Call]
    forward: tuple[str, ...]
    """Arguments, then lines."""


def network_code(
    network: fx.GraphModule, name: str, tensor_part: _TensorPart, imports: Imports
) -> NetworkCode:
    """Write a network; `name`: of its class."""
    return _Writer(network, name, tensor_part, imports).write()


class _Writer:
    def __init__(
        self, network: fx.GraphModule, name: str, tensor_part: _TensorPart, imports: Imports
    ) -> None:
        self._network, self._imports, self._tensor_part = network, imports, tensor_part
        drop_defaults(network)
        self._names: set[str] = {*_TAKEN}
        self._root = root_scope(network.graph, self._class_name(name))
        self._built: dict[str, Call] = {}
        """Path -> how it is built: scopes are, once their class is known."""
        self._classes: list[str] = []
        self._targets = _targets(network)
        self._paths = [*self._targets, *(scope.path for scope in self._root.inner())]
        """Scopes may have no tensors."""

    def write(self) -> NetworkCode:
        scopes = list(self._root.inner())
        sequences = {scope for scope in scopes if self._is_sequence(scope)}
        heights = {scope: _height(scope, sequences) for scope in scopes}
        for height in range(max(heights.values(), default=-1) + 1):
            here = [scope for scope in scopes if heights[scope] == height]
            groups: dict[object, list[_Block]] = {}
            for scope in here:
                if scope not in sequences:
                    block = self._block(scope)
                    key = scope.kind, block.forward, tuple(block.parts)
                    groups.setdefault(key, []).append(block)
            for group in groups.values():
                self._share(group)
            for scope in here:  # inner ones first
                if scope in sequences:
                    self._built[scope.path] = Call("nn.Sequential(", self._parts(scope.path))
        return self._whole()

    def _whole(self) -> NetworkCode:
        tail = self._ties()
        if self._is_sequence(self._root) and not tail and not self._evaluated():
            built = Call("nn.Sequential(", self._parts(""))
            return NetworkCode(self._classes, "\n".join(lines("", built, 0)))
        root = self._block(self._root)
        self._write_class(self._root.kind, [], root, root.parts, tail)
        for call, helper in (("angles(", ANGLES), ("Group({", GROUP)):
            if any(call in line for line in self._classes):
                self._classes = [*helper.strip().splitlines(), "", "", *self._classes]
        return NetworkCode(self._classes, f"{self._root.kind}()")

    # ---- parts ----------------------------------------------------------------------------

    def _block(self, scope: Scope) -> _Block:
        parts = self._parts(scope.path)

        def access(path: str) -> str:
            return _access(parts, path[len(scope.path) :].strip("."))

        arguments, steps = forward_of(scope, access, self._imports)
        return _Block(scope, parts, (", ".join(arguments), *steps))

    def _parts(self, path: str) -> dict[str, Call]:
        """What is below a path, as far as the graph uses it."""
        return {name: self._part(f"{path}.{name}".strip(".")) for name in self._children(path)}

    def _children(self, path: str) -> list[str]:
        prefix = f"{path}." if path else ""
        names = [p[len(prefix) :].partition(".")[0] for p in self._paths if p.startswith(prefix)]
        if all(map(str.isdigit, names)):
            names.sort(key=int)
        return list(dict.fromkeys(names))

    def _part(self, path: str) -> Call:
        if path not in self._built and path not in self._targets:
            return container(self._parts(path))
        if path not in self._built:
            owner, _, leaf = path.rpartition(".")
            held = getattr(self._network.get_submodule(owner), leaf)
            if isinstance(held, Tensor):
                self._built[path] = self._tensor_part(path, held)
            else:
                self._built[path] = layer_part(path, held, self._imports)
        return self._built[path]

    def _is_sequence(self, scope: Scope) -> bool:
        """Whether a scope calls its children one after the other, and nothing else."""
        names = self._children(scope.path)
        if not is_listed(names) or len(scope.inputs) != 1 or len(scope.steps) != len(names):
            return False
        value = scope.inputs[0]
        for name, step in zip(names, scope.steps, strict=True):
            path, given = plain_call(step)
            if path != f"{scope.path}.{name}".strip(".") or given != (value,):
                return False
            value = step.output if isinstance(step, Scope) else step
        return value is scope.output

    # ---- classes --------------------------------------------------------------------------

    def _share(self, group: Sequence[_Block]) -> None:
        """Make one class of equal blocks."""
        arguments = Arguments()
        parts = {
            name: arguments.common(name, [block.parts[name] for block in group])
            for name in group[0].parts
        }
        name = self._class_name(group[0].scope.kind)
        self._write_class(name, list(arguments.values), group[0], parts)
        for number, block in enumerate(group):
            args = {name: values[number] for name, values in arguments.values.items()}
            self._built[block.scope.path] = Call(f"{name}(", args, label="{}=")

    def _class_name(self, wanted: str) -> str:
        name = plain = wanted if wanted.isidentifier() else "Block"
        number = 2
        while name in self._names:
            name, number = f"{plain}{number}", number + 1
        self._names.add(name)
        return name

    def _write_class(
        self,
        name: str,
        arguments: Sequence[str],
        block: _Block,
        parts: Mapping[str, Part],
        tail: Sequence[str] = (),
    ) -> None:
        numbers = {name: parts[name] for name in numbered(block.parts)}
        found = [f"class {name}({'nn.Sequential' if numbers else 'nn.Module'}):"]
        if parts:
            found.append(f"{INDENT}def __init__({', '.join(['self', *arguments])}):")
            found += lines("", Call("super().__init__(", numbers), 2)
            for child, part in parts.items():
                if child not in numbers and is_name(child):
                    found += lines(f"self.{child} = ", part, 2)
                elif child not in numbers:
                    found += lines("", Call(f'setattr(self, "{child}", ', {"": part}), 2)
            found += [*(INDENT * 2 + line for line in tail), ""]
        inputs, *steps = block.forward
        found += function(f"forward({', '.join(['self', *filter(None, [inputs])])})", steps, 1)
        if block.scope is self._root:
            found += self._evaluated()
        self._classes += [*found, "", ""]

    # ---- the whole network ----------------------------------------------------------------

    def _ties(self) -> list[str]:
        """Parameters that are another one."""
        first: dict[int, str] = {}
        found, parts = [], self._parts("")
        for path, parameter in self._network.named_parameters(remove_duplicate=False):
            before = first.setdefault(id(parameter), path)
            if before != path:
                owner, _, leaf = path.rpartition(".")
                at, value = _access(parts, owner), _access(parts, before)
                plain = f"{at}.{leaf} = {value}"
                found.append(plain if is_name(leaf) else f'setattr({at}, "{leaf}", {value})')
        return found

    def _evaluated(self) -> list[str]:
        """`train` of a network some of whose layers stay in eval mode."""
        if not isinstance(self._network, KeepsModes):
            return []
        kept = [p for p in self._network.evaluated if p and not p.endswith("_flag")]
        paths = ", ".join(f'"{path}"' for path in kept)
        return [
            "",
            f"{INDENT}def train(self, mode=True):",
            f"{INDENT * 2}super().train(mode)",
            f"{INDENT * 2}for path in [{paths}]:  # they stay in eval mode",
            f"{INDENT * 3}self.get_submodule(path).training = False",
            f"{INDENT * 2}return self",
        ]


def _targets(network: fx.GraphModule) -> dict[str, None]:
    """Paths of the layers and tensors of a graph; a tensor of a layer is the layer's."""
    called = {
        str(n.target): None for n in network.graph.nodes if n.op == "call_module" and not is_flag(n)
    }
    read = {str(n.target): None for n in network.graph.nodes if n.op == "get_attr"}
    layers = tuple(f"{path}." for path in called)
    every = {**called, **{path: None for path in read if not path.startswith(layers)}}
    order = {name: place for place, (name, _) in enumerate(network.named_modules())}

    def place(path: str) -> int:
        return order.get(path, order.get(path.rpartition(".")[0], 0))

    return dict.fromkeys(sorted(every, key=place))


def _height(scope: Scope, sequences: set[Scope]) -> int:
    """How deep classes are nested in a scope; an `nn.Sequential` is none."""
    inner = [_height(s, sequences) for s in scope.steps if isinstance(s, Scope)]
    return max(inner, default=0) + (scope not in sequences)


def _access(parts: Mapping[str, Any], path: str) -> str:
    """The expression of a module or tensor below `self`, which holds these parts."""
    at, by_number = "self", bool(numbered(parts))
    for name in filter(None, path.split(".")):
        if by_number and name.isdigit():
            at = f"{at}[{name}]"
        else:
            at = f"{at}.{name}" if is_name(name) else f'getattr({at}, "{name}")'
        part = parts.get(name)
        by_number = isinstance(part, Call) and part.listed
        parts = part.args if isinstance(part, Call) else {}
    return at
