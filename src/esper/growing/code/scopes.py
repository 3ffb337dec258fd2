"""The graph of a network as nested calls of modules: what each module of the user's computes.

A scope is a module whose nodes stand together in the graph and pass on one value; others are
opened, and their nodes belong to the module around them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from torch import fx

from esper.kasmina.tracing.module_stacks import module_stack
from esper.kasmina.tracing.tracer import FLAG


def is_free(node: fx.Node) -> bool:
    """Whether a node is written where it is used: tensors of the network, the training mode."""
    return node.op == "get_attr" or is_flag(node)


def is_flag(node: fx.Node) -> bool:
    """Whether a node asks for the training mode."""
    return node.op == "call_module" and str(node.target).rpartition(".")[2] == FLAG


@dataclass(eq=False)
class Scope:
    """A module: its steps are nodes and calls of the scopes inside of it."""

    path: str
    kind: str
    """Name of its class."""
    inputs: list[fx.Node]
    output: fx.Node
    steps: list[fx.Node | Scope] = field(default_factory=list)

    @property
    def nodes(self) -> list[fx.Node]:
        """All its nodes, those of inner scopes included."""
        found = []
        for step in self.steps:
            found += step.nodes if isinstance(step, Scope) else [step]
        return found

    def inner(self) -> Iterator[Scope]:
        """The scopes in it, at any depth, inner ones first."""
        for step in self.steps:
            if isinstance(step, Scope):
                yield from step.inner()
                yield step


def drop_defaults(network: fx.GraphModule) -> None:
    """Leave out arguments that have their default, as `src_mask=None`."""
    for node in network.graph.nodes:
        if node.op not in ("call_module", "call_function") or not node.kwargs:
            continue
        target: Any = node.target
        if node.op == "call_module":
            target = network.get_submodule(target).forward
        try:
            known = inspect.signature(target).parameters
        except (TypeError, ValueError):  # most of torch's functions in C++
            continue
        node.kwargs = {
            name: value
            for name, value in node.kwargs.items()
            if name not in known or repr(value) != repr(known[name].default)
        }


def root_scope(graph: fx.Graph, kind: str) -> Scope:
    """The whole network."""
    nodes = list(graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    (output,) = nodes[-1].args
    assert isinstance(output, fx.Node), "a network returns one tensor"
    body = [n for n in nodes if n.op not in ("placeholder", "output") and not is_free(n)]
    scope = Scope("", kind, inputs, output)
    calls = _call_counts(body)
    _fill(scope, body, set(), calls)
    for one in (scope, *scope.inner()):
        one.steps = _with_lists(one.steps, calls)
    return scope


def plain_call(step: fx.Node | Scope) -> tuple[str, tuple[Any, ...]]:
    """Path of the module that a step calls, "" if it does not, and its arguments."""
    if isinstance(step, Scope):
        return step.path, tuple(step.inputs)
    plain = step.op == "call_module" and not step.kwargs
    return str(step.target) if plain else "", step.args


def _with_lists(steps: list[fx.Node | Scope], calls: dict[str, set[str]]) -> list[fx.Node | Scope]:
    """The steps, those of a whole list of modules, each called with the last one's value, as one
    scope."""
    found: list[fx.Node | Scope] = []
    while steps:
        path, given = plain_call(steps[0])
        folder, _, leaf = path.rpartition(".")
        count = _run_length(steps, folder) if folder and leaf == "0" else 0
        once = all(len(calls.get(f"{folder}.{n}", ())) == 1 for n in range(count))
        if count < 2 or not once or folder in calls or f"{folder}.{count}" in calls:
            count = 1
            found.append(steps[0])
        else:
            last = steps[count - 1]
            output = last.output if isinstance(last, Scope) else last
            found.append(Scope(folder, "Sequential", list(given), output, steps[:count]))
        steps = steps[count:]
    return found


def _run_length(steps: list[fx.Node | Scope], folder: str) -> int:
    """How many steps call the modules of a list, each with the value of the one before alone."""
    for number, step in enumerate(steps):
        path, given = plain_call(step)
        if path != f"{folder}.{number}" or not (len(given) == 1 and isinstance(given[0], fx.Node)):
            return number
        if number:
            before = steps[number - 1]
            value = before.output if isinstance(before, Scope) else before
            inside = step.nodes if isinstance(step, Scope) else [step]
            if given != (value,) or not set(value.users) <= set(inside):
                return number
    return len(steps)


def _call_counts(nodes: Sequence[fx.Node]) -> dict[str, set[str]]:
    """Path of a module -> its calls."""
    counts: dict[str, set[str]] = {}
    for node in nodes:
        for key, (path, _) in module_stack(node).items():
            counts.setdefault(path, set()).add(key)
    return counts


def _fill(scope: Scope, nodes: list[fx.Node], opened: set[str], calls: dict[str, set[str]]) -> None:
    """Find the scopes inside of one; those that do not hold together are opened."""
    while True:
        groups = [
            (key, list(group)) for key, group in groupby(nodes, key=lambda n: _call(n, opened))
        ]
        keys = [key for key, _ in groups if key]
        broken = {
            key
            for key, group in groups
            if key and (keys.count(key) > 1 or not _holds(key, group, calls))
        }
        if not broken:
            break
        opened = opened | broken
    for key, group in groups:
        if not key:
            scope.steps += group
            continue
        path, kind = module_stack(group[0])[key]
        inside = set(group)
        inputs = list(dict.fromkeys(n for node in group for n in _read(node) if n not in inside))
        (output,) = _outputs(group)
        inner = Scope(path, kind.__name__, inputs, output)
        _fill(inner, group, opened | {key}, calls)
        scope.steps.append(inner)


def _call(node: fx.Node, opened: set[str]) -> str:
    """The outermost call of a module that a node is in, of those not opened; "": none."""
    for key, (path, _) in module_stack(node).items():
        leaf = node.op == "call_module" and path == node.target
        if path and key not in opened and not leaf:
            return key
    return ""


def _holds(key: str, group: list[fx.Node], calls: dict[str, set[str]]) -> bool:
    """Whether nodes are a module of their own."""
    path, _ = module_stack(group[0])[key]
    own = [
        str(n.target) for node in group for n in (node, *_free_inputs(node))
        if n.op in ("call_module", "get_attr")
    ]  # fmt: skip
    return (
        len(calls[path]) == 1
        and len(_outputs(group)) == 1
        and all(target.startswith(f"{path}.") for target in own)
    )


def _free_inputs(node: fx.Node) -> list[fx.Node]:
    return [n for n in node.all_input_nodes if is_free(n)]


def _read(node: fx.Node) -> list[fx.Node]:
    return [n for n in node.all_input_nodes if not is_free(n)]


def _outputs(group: list[fx.Node]) -> list[fx.Node]:
    inside = set(group)
    return [node for node in group if any(user not in inside for user in node.users)]
