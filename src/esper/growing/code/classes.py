"""A network as classes: equal blocks of it share one, with their sizes as its arguments."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from torch import Tensor, fx

from esper.growing.code.docs import INDENT, Call, Doc, flat, function, lines
from esper.growing.code.expressions import Imports
from esper.growing.code.forwards import forward_of
from esper.growing.code.scopes import Scope, drop_defaults, is_flag, root_scope
from esper.growing.code.specs import (
    Container,
    Hole,
    Key,
    Layer,
    Part,
    Value,
    below,
    holds_values,
    layer_spec,
    same,
)
from esper.kasmina.plain.plain_graph import KeepsModes

_TAKEN: Final = {"nn", "F", "torch", "np", "math", "train", "augment", "schedule", "evaluate"}
TensorValue = Callable[[str, Tensor], Value]
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
    parts: Container
    forward: tuple[str, ...]
    height: int

    @property
    def key(self) -> object:
        """Blocks with the same key become one class."""
        # A part with tensors of its own cannot be an argument.
        tensors = [(n, c.shape()) for n, c in self.parts.children.items() if holds_values(c)]
        kinds = tuple(self.parts.children), tuple(tensors)
        return self.scope.kind, self.forward, kinds, self.height


def network_code(
    network: fx.GraphModule,
    name: str,
    tensor_value: TensorValue,
    imports: Imports,
    lengths: Mapping[fx.Node, int],
) -> NetworkCode:
    """Write a network; `name`: of its class; `lengths`: of the tuples that nodes give."""
    return _Writer(network, name, tensor_value, imports, lengths).write()


class _Writer:
    def __init__(
        self,
        network: fx.GraphModule,
        name: str,
        tensor_value: TensorValue,
        imports: Imports,
        lengths: Mapping[fx.Node, int],
    ) -> None:
        self._network, self._imports, self._tensor_value = network, imports, tensor_value
        self._lengths = lengths
        drop_defaults(network)
        self._root = root_scope(network.graph, name)
        self._built: dict[str, Part] = {}
        """Path -> how it is built: scopes are, once their class is known."""
        self._classes: list[str] = []
        self._names: set[str] = set(_TAKEN) | {name}
        self._targets = _targets(network)
        self._paths = [*self._targets, *(scope.path for scope in self._root.inner())]
        """Scopes may have no tensors."""

    def write(self) -> NetworkCode:
        scopes = list(self._root.inner())
        sequences = {s for s in scopes if _is_sequence(s, self._container(s.path))}
        heights = {scope: _height(scope, sequences) for scope in scopes}
        for height in range(max(heights.values(), default=-1) + 1):
            here = [scope for scope in scopes if heights[scope] == height]
            groups: dict[object, list[_Block]] = {}
            for scope in here:
                if scope not in sequences:
                    block = self._block(scope, height)
                    groups.setdefault(block.key, []).append(block)
            for group in groups.values():
                self._share(group)
            for scope in here:  # inner ones first
                if scope in sequences:
                    self._built[scope.path] = Container(
                        self._container(scope.path).children, sequential=True
                    )
        root = self._block(self._root, 0)
        tail = self._ties()
        if _is_sequence(root.scope, root.parts) and not tail and not self._evaluated():
            built = replace(root.parts, sequential=True).render({}, frozenset())
            return NetworkCode(self._classes, "\n".join(lines("", built, 0)))
        self._write_class(self._root.kind, [], root, root.parts, {}, frozenset(), tail)
        return NetworkCode(self._classes, f"{self._root.kind}()")

    # ---- parts ----------------------------------------------------------------------------

    def _block(self, scope: Scope, height: int) -> _Block:
        parts = self._container(scope.path)

        def access(path: str) -> str:
            return _access(parts, path[len(scope.path) :].strip("."), path)

        forward = forward_of(scope, access, self._imports, self._lengths)
        return _Block(scope, parts, (", ".join(forward[0]), *forward[1]), height)

    def _container(self, path: str) -> Container:
        """What is below a path, as far as the graph uses it."""
        prefix = f"{path}." if path else ""
        names = [p[len(prefix) :].partition(".")[0] for p in self._paths if p.startswith(prefix)]
        if all(map(str.isdigit, names)):
            names.sort(key=int)
        return Container({name: self._part(f"{prefix}{name}") for name in dict.fromkeys(names)})

    def _part(self, path: str) -> Part:
        if path in self._built:
            return self._built[path]
        if path not in self._targets:
            return self._container(path)
        owner, _, leaf = path.rpartition(".")
        held = getattr(self._network.get_submodule(owner), leaf)
        if isinstance(held, Tensor):
            found: Part = self._tensor_value(path, held)
        else:
            found = layer_spec(path, held, self._imports)
        self._built[path] = found
        return found

    # ---- classes --------------------------------------------------------------------------

    def _share(self, group: Sequence[_Block]) -> None:
        """Make one class of equal blocks."""
        parts, holes, values = _parameters([block.parts for block in group])
        name = self._class_name(group[0].scope.kind)
        shown = frozenset(key for block in group for key in _unusual(block.parts))
        self._write_class(name, [hole.name for hole in values], group[0], parts, holes, shown)
        for number, block in enumerate(group):
            args = {hole.name: found[number] for hole, found in values.items()}
            self._built[block.scope.path] = Layer(name, args, {}, by_name=True)

    def _class_name(self, wanted: str) -> str:
        plain = wanted if wanted.isidentifier() else "Block"
        name, number = plain, 2
        while name in self._names:
            name, number = f"{plain}{number}", number + 1
        self._names.add(name)
        return name

    def _write_class(
        self,
        name: str,
        arguments: Sequence[str],
        block: _Block,
        parts: Container,
        holes: Mapping[Key, Hole],
        shown: frozenset[Key],
        tail: Sequence[str] = (),
    ) -> None:
        indexed = _numbered(parts)
        base = "nn.Sequential" if indexed else "nn.Module"
        given = "".join(f", {argument}" for argument in arguments)
        found = [f"class {name}({base}):"]
        body = _construction(parts, holes, shown, indexed)
        body += [INDENT * 2 + line for line in tail]
        if arguments or body or indexed:
            found.append(f"{INDENT}def __init__(self{given}):")
            if not indexed:
                found.append(f"{INDENT * 2}super().__init__()")
            found += [*body, ""]
        inputs, *steps = block.forward
        found += function(f"forward({', '.join(['self', *filter(None, [inputs])])})", steps, 1)
        if block.scope is self._root:
            found += self._evaluated()
        self._classes += [*found, "", ""]

    # ---- the whole network ----------------------------------------------------------------

    def _ties(self) -> list[str]:
        """Parameters that are another one."""
        first: dict[int, str] = {}
        found = []
        whole = self._container("")
        for path, parameter in self._network.named_parameters(remove_duplicate=False):
            before = first.setdefault(id(parameter), path)
            if before != path:
                to, source = (_tensor_access(whole, p) for p in (path, before))
                found.append(f"{to} = {source}")
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


def _is_sequence(scope: Scope, parts: Container) -> bool:
    """Whether a scope calls its children one after the other, and nothing else."""
    if not parts.indexed or len(parts.modules) != len(parts.children) or len(scope.inputs) != 1:
        return False
    value, prefix = scope.inputs[0], f"{scope.path}." if scope.path else ""
    if len(scope.steps) != len(parts.children):
        return False
    for number, step in enumerate(scope.steps):
        path, given = _plain_call(step)
        if path != f"{prefix}{number}" or given != (value,):
            return False
        value = step.output if isinstance(step, Scope) else step
    return value is scope.output


def _plain_call(step: fx.Node | Scope) -> tuple[str, tuple[Any, ...]]:
    """Path of the module that a step calls, "" if it does not, and its arguments."""
    if isinstance(step, Scope):
        return step.path, tuple(step.inputs)
    plain = step.op == "call_module" and not step.kwargs
    return str(step.target) if plain else "", step.args


# ---- sharing ----------------------------------------------------------------------------------


def _parameters(
    every: Sequence[Container],
) -> tuple[Container, dict[Key, Hole], dict[Hole, list[Any]]]:
    """What differs between equal blocks becomes arguments: (parts, holes, their values)."""
    children: dict[str, Part] = {}
    holes: dict[Key, Hole] = {}
    values: dict[Hole, list[Any]] = {}
    known: dict[str, Hole] = {}
    for name in every[0].children:
        parts = [one.children[name] for one in every]
        children[name] = parts[0]
        if any(part.shape() != parts[0].shape() for part in parts):
            hole = Hole(name if name.isidentifier() else f"part{name}")
            holes[(name,)] = hole
            values[hole] = parts
            continue
        slots = [dict(part.slots()) for part in parts]
        for key in slots[0]:
            found = [one[key] for one in slots]
            if all(same(value, found[0]) for value in found):
                continue
            text = repr([repr(value) for value in found])
            if text not in known:
                known[text] = Hole(_hole_name((name, *key), {h.name for h in values}))
                values[known[text]] = found
            holes[name, *key] = known[text]
    return replace(every[0], children=children), holes, values


def _hole_name(key: Key, taken: set[str]) -> str:
    leaf = key[-1]
    plain = "size" if leaf.startswith("size") else leaf
    candidates = [plain, "_".join(part for part in (*key[-2:-1], plain))]
    candidates += [f"{plain}{number}" for number in range(2, 100)]
    free = (n for n in candidates if n.isidentifier() and n not in taken)
    return next(name for name in free if not keyword.iskeyword(name))


def _unusual(part: Part) -> list[Key]:
    """Slots that do not have the default of their layer."""
    if isinstance(part, Container):
        return [(name, *key) for name, c in part.children.items() for key in _unusual(c)]
    if isinstance(part, Value):
        return []
    return [
        (name,)
        for name, value in part.args.items()
        if name not in part.defaults or not same(value, part.defaults[name])
    ]


# ---- text -------------------------------------------------------------------------------------


def _numbered(parts: Container) -> bool:
    """Whether children of a class are called 0, 1, 2: then it is an `nn.Sequential`."""
    digits = [name for name in parts.modules if name.isdigit()]
    return bool(digits) and digits == [str(n) for n in range(len(digits))]


def _construction(
    parts: Container, holes: Mapping[Key, Hole], shown: frozenset[Key], indexed: bool
) -> list[str]:
    """Lines of `__init__` after the call of the base class, or with it."""

    def doc(name: str) -> Doc:
        if (name,) in holes:
            return holes[(name,)].name
        mine = frozenset(below(dict.fromkeys(shown), name))
        return parts.children[name].render(below(holes, name), mine)

    found: list[str] = []
    if indexed:
        items = tuple(doc(name) for name in parts.modules if name.isdigit())
        found += lines("", Call("super().__init__(", items, ")"), 2)
    for name, child in parts.children.items():
        if isinstance(child, Value) and not child.parameter:
            found += _buffer("self", name, child, flat(doc(name)))
        elif not (indexed and name.isdigit()):
            start = f"self.{name} = " if _is_name(name) else ""
            if start:
                found += lines(start, doc(name), 2)
            else:
                method = "register_parameter" if isinstance(child, Value) else "add_module"
                found += lines("", Call(f'self.{method}("{name}", ', (doc(name),), ")"), 2)
        if isinstance(child, Container) and (name,) not in holes:
            found += _tensors_in(child, f"self{_step(parts, name)}", below(holes, name))
    return found


def _tensors_in(parts: Container, at: str, holes: Mapping[Key, Any]) -> list[str]:
    """Assignments of what the construction of a container does not hold."""
    found: list[str] = []
    if parts.listed:
        return found
    for name, child in parts.children.items():
        inner = below(holes, name)
        if isinstance(child, Value):
            text = flat(child.render(inner, frozenset()))
            if child.parameter and _is_name(name):
                found.append(f"{INDENT * 2}{at}.{name} = {text}")
            elif child.parameter:
                found.append(f'{INDENT * 2}{at}.register_parameter("{name}", {text})')
            else:
                found += _buffer(at, name, child, text)
            continue
        if parts.kind == "nn.Module":
            found += lines(f"{at}.{name} = ", child.render(inner, frozenset()), 2)
        if isinstance(child, Container):
            found += _tensors_in(child, f"{at}{_step(parts, name)}", inner)
    return found


def _buffer(at: str, name: str, value: Value, text: str) -> list[str]:
    kept = "" if value.persistent else ", persistent=False"
    return [f'{INDENT * 2}{at}.register_buffer("{name}", {text}{kept})']


def _is_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def _step(parts: Container, name: str) -> str:
    """Access to a child."""
    if name.isdigit() and (parts.indexed or parts.listed or _numbered(parts)):
        return f"[{name}]"
    if _is_name(name):
        return f".{name}"
    return f'.get_submodule("{name}")'


def _access(parts: Container, rest: str, path: str) -> str:
    """The expression of a module or tensor below `self`."""
    at, place = "self", parts
    names = rest.split(".")
    for number, name in enumerate(names):
        child = place.children.get(name)
        if isinstance(child, Value) and not _is_name(name) and not place.listed:
            return f'{at}.get_parameter("{name}")'
        at += _step(place, name)
        if not isinstance(child, Container):
            return at + "".join(f".{n}" for n in names[number + 1 :])
        place = child
    return at


def _tensor_access(whole: Container, path: str) -> str:
    owner, _, leaf = path.rpartition(".")
    if not owner:
        return f"self.{leaf}"
    at = "self"
    place: Part | None = whole
    for name in owner.split("."):
        if isinstance(place, Container):
            at += _step(place, name)
            place = place.children.get(name)
        else:
            at += f"[{name}]" if name.isdigit() else f".{name}"
    return f"{at}.{leaf}"
