"""Properties of a segment's graph: does it add to its input, does it write over it?"""

from __future__ import annotations

from torch import fx, nn

_ADDS = frozenset({"add", "add_", "iadd"})
_PASSES = frozenset({"relu", "relu_", "gelu", "silu", "dropout", "clone", "contiguous"})
_PASSING_LAYERS = ("torch.nn.modules.activation", "torch.nn.modules.dropout")
"""Where layers are defined that keep the shape and have no weights, except attention."""


def keeps_input(segment: fx.GraphModule) -> bool:
    """Whether the output is the input plus something, perhaps through an activation."""
    output = next(node for node in segment.graph.nodes if node.op == "output")
    start = output.args[0]
    adds = isinstance(start, fx.Node) and start.op != "placeholder"
    return adds and _reaches_input(segment, start, ())


def _reaches_input(segment: fx.GraphModule, node: fx.Node, axes: tuple[int, ...]) -> bool:
    """Whether a node adds to the input; `axes`: how its axes are permuted later."""
    while True:
        if node.op == "placeholder":
            return axes == tuple(range(len(axes)))
        data = [n for n in node.args if isinstance(n, fx.Node)]
        if _name(node) in _ADDS:
            return any(_reaches_input(segment, n, axes) for n in data)
        if node.op == "call_method" and node.target == "permute":
            order = [axis for axis in node.args[1:] if isinstance(axis, int)]
            if len(order) + 1 < len(node.args) or (axes and len(axes) != len(order)):
                return False
            axes = tuple(order[axis] for axis in axes) if axes else tuple(order)
        elif not data or not _passes(segment, node):
            return False
        node = data[0]


def _passes(segment: fx.GraphModule, node: fx.Node) -> bool:
    if node.op != "call_module":
        return _name(node) in _PASSES
    layer = segment.get_submodule(str(node.target))
    if isinstance(layer, nn.MultiheadAttention):
        return False
    return isinstance(layer, nn.Identity) or type(layer).__module__ in _PASSING_LAYERS


def _name(node: fx.Node) -> str:
    if node.op == "call_function":
        return str(getattr(node.target, "__name__", ""))
    return str(node.target) if node.op == "call_method" else ""


def protect_input(graph: fx.Graph, x: fx.Node) -> None:
    """Let a graph work on a copy of a tensor it is given, which others read too."""
    with graph.inserting_after(x):
        copied = graph.call_method("clone", (x,))
    x.replace_all_uses_with(copied, delete_user_cb=lambda user: user is not copied)
