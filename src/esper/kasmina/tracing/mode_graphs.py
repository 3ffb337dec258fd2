"""Modules that ask for the training mode as graphs, where the mode changes numbers only.

    F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)

A trace of the model keeps such a module whole, because it cannot follow both ways. Traced once for
each mode, the two graphs are the same but for `dropout_p`: 0.1 and 0, which is 0.1 times the mode.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Sequence
from typing import Any, Final

from torch import fx, nn
from torch.fx.node import map_aggregate, map_arg

from esper.kasmina.layers.layers import has_hooks
from esper.kasmina.layers.modes import in_mode
from esper.kasmina.plain.plain_graph import LeafTracer
from esper.kasmina.tracing.module_stacks import outer_stack
from esper.kasmina.tracing.tracer import FLAG, MODE_FLOW, kept_random_state, random_state

_PLAIN: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


def mode_graph(module: nn.Module, calls: Sequence[fx.Node], reason: str) -> fx.Graph | None:
    """Return the graph of a module that is called by these nodes, None if it must stay whole.

    `reason`: why the trace of the model kept it. The graph takes what the nodes give, and the mode
    from the module `FLAG` in it.
    """
    own_train = type(module).train is not nn.Module.train
    if reason != MODE_FLOW or own_train or has_hooks(module):
        return None
    if not all(_gives_everything(module, node) for node in calls):
        return None
    training, evaluated = _traced(module, True), _traced(module, False)
    if training is None or evaluated is None:
        return None
    joined = _joined(training, evaluated)
    if joined is None or not _uses_everything(module, joined):
        return None
    for node in joined.nodes:
        node.meta = outer_stack(node, type(module))
    return joined


def _gives_everything(module: nn.Module, node: fx.Node) -> bool:
    """Whether a node gives all arguments by position, as values: code may depend on others."""
    parameters = inspect.signature(module.forward).parameters.values()
    simple = all(p.kind in _PLAIN for p in parameters) and not node.kwargs
    return simple and len(node.args) == len(node.all_input_nodes) == len(parameters)


def _uses_everything(module: nn.Module, graph: fx.Graph) -> bool:
    """Whether no tensor of a module is lost in its graph."""
    used = tuple(f"{n.target}." for n in graph.nodes if n.op in ("call_module", "get_attr"))
    tensors = (*module.named_parameters(), *module.named_buffers())
    return all(f"{name}.".startswith(used) for name, _ in tensors)


def _traced(module: nn.Module, mode: bool) -> fx.Graph | None:
    tracer = LeafTracer()
    try:
        with in_mode(module, mode), kept_random_state():
            state = random_state()
            graph = tracer.trace(module)
            drawn = random_state() != state  # a trace would freeze it
    except Exception:  # user code may fail on a proxy in any way
        return None
    return None if drawn or tracer.untraced else graph


class _DiffersError(Exception):
    """Two graphs differ in more than numbers that are 0 in eval mode."""


def _joined(training: fx.Graph, evaluated: fx.Graph) -> fx.Graph | None:
    """Return the training graph with the mode in it; None if the graphs differ in more."""
    if len(training.nodes) != len(evaluated.nodes):
        return None
    pairs = list(zip(training.nodes, evaluated.nodes, strict=True))
    partners = {other: node for node, other in pairs}
    try:
        for node, other in pairs:
            if (node.op, node.target) != (other.op, other.target):
                return None
            with training.inserting_before(node):
                at_rest = map_arg((other.args, other.kwargs), lambda n: partners[n])
                node.args, node.kwargs = _with_mode(training, (node.args, node.kwargs), at_rest)
    except _DiffersError:
        return None
    return training


def _with_mode(graph: fx.Graph, arguments: Any, at_rest: Any) -> Any:
    """Return a node's arguments that have one of two values; raises if they cannot.

    `at_rest`: the values in eval mode.
    """
    others: list[Any] = []
    map_aggregate(at_rest, others.append)
    rest = iter(others)

    def joined(value: Any) -> Any:
        other = next(rest)
        if type(value) is type(other) and value == other:
            return value
        if not isinstance(value, int | float) or type(other) not in (int, float) or other != 0:
            raise _DiffersError
        return graph.call_function(operator.mul, (graph.call_module(FLAG), value))

    if _form(arguments) != _form(at_rest):
        raise _DiffersError
    return map_aggregate(arguments, joined)


def _form(arguments: Any) -> Any:
    return map_aggregate(arguments, lambda _: None)
