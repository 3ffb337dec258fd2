"""Properties of a segment's graph: does it add to its input, does it write over it?"""

from __future__ import annotations

from torch import fx

_ADDS = frozenset({"add", "add_", "iadd"})
_PASSES = frozenset({"relu", "relu_", "gelu", "silu", "dropout", "clone", "contiguous"})
_PASSING_LAYERS = ("relu", "act", "drop", "activation", "identity")


def keeps_input(graph: fx.Graph) -> bool:
    """Whether the output is the input plus something, perhaps through an activation."""
    output = next(node for node in graph.nodes if node.op == "output")
    start = output.args[0]
    return isinstance(start, fx.Node) and start.op != "placeholder" and _reaches_input(start)


def _reaches_input(node: fx.Node) -> bool:
    while True:
        if node.op == "placeholder":
            return True
        data = [n for n in node.args if isinstance(n, fx.Node)]
        if _name(node) in _ADDS:
            return any(_reaches_input(n) for n in data)
        if not data or not _passes(node):
            return False
        node = data[0]


def _passes(node: fx.Node) -> bool:
    if node.op == "call_module":
        last = str(node.target).rpartition(".")[2].lower()
        return any(last.startswith(name) for name in _PASSING_LAYERS)
    return _name(node) in _PASSES


def _name(node: fx.Node) -> str:
    if node.op == "call_function":
        return str(getattr(node.target, "__name__", ""))
    return str(node.target) if node.op == "call_method" else ""


def protect_input(graph: fx.Graph) -> None:
    """Let a graph work on a copy of its input, which others read too."""
    x = next(node for node in graph.nodes if node.op == "placeholder")
    with graph.inserting_after(x):
        copied = graph.call_method("clone", (x,))
    x.replace_all_uses_with(copied, delete_user_cb=lambda user: user is not copied)
