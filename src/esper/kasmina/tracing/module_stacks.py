"""In which modules of the user's a node of a graph was recorded: fx's `nn_module_stack`.

Tracers record it, and it is all that is kept of a node's `meta` when graphs are joined, so
that a network can be written as classes again (`growing/code`).
"""

from __future__ import annotations

from typing import Any, Final

from torch import fx

STACK: Final = "nn_module_stack"
"""Key of a node's `meta`: {call: (path, class)}, outermost first. A second call of a module has a
key of its own."""


def module_stack(node: fx.Node) -> dict[str, tuple[str, Any]]:
    """{call: (path, class)} of the modules that a node was recorded in, outermost first."""
    return dict(node.meta.get(STACK) or {})


def owner_path(node: fx.Node) -> str:
    """Path of the module whose code makes a node; empty: the model's own."""
    return next((path for path, _ in reversed(module_stack(node).values())), "")


def kept_stack(node: fx.Node) -> dict[str, Any]:
    """A node's `meta` with only the stack."""
    return {STACK: node.meta[STACK]} if node.meta.get(STACK) else {}


def outer_stack(node: fx.Node, kind: type) -> dict[str, Any]:
    """A node's `meta` with only the stack, the traced module (of class `kind`) included."""
    return {STACK: {"": ("", kind)} | module_stack(node)}


def nested_stack(node: fx.Node, prefix: str, caller: fx.Node | None) -> dict[str, Any]:
    """A node's `meta` with only the stack, for a graph inside of another one.

    `prefix`: of its paths there; `caller`: the node that the graph stands for.
    """
    above = {} if caller is None else module_stack(caller)
    own = module_stack(node)
    inner = {
        f"{prefix}{call}".rstrip("."): (f"{prefix}{path}".rstrip("."), kind)
        for call, (path, kind) in own.items()
    }
    joined = above | inner
    return {STACK: joined} if joined else {}
