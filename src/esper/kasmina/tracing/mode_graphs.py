"""Modules that ask for the training mode as graphs, where the mode changes numbers only.

    F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)

A trace of the model keeps such a module whole, because it cannot follow both ways. Traced once for
each mode, the two graphs are the same but for `dropout_p`: 0.1 and 0, which is 0.1 times the mode.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

from torch import fx, nn

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


class _Differs(Exception):
    """Two graphs differ in more than numbers that are 0 in eval mode."""


def _joined(training: fx.Graph, evaluated: fx.Graph) -> fx.Graph | None:
    """Return the training graph with the mode in it; None if the graphs differ in more."""
    if len(training.nodes) != len(evaluated.nodes):
        return None
    pairs = list(zip(training.nodes, evaluated.nodes, strict=True))
    join = _Join(training, {other: node for node, other in pairs})
    try:
        for node, other in pairs:
            if (node.op, node.target) != (other.op, other.target):
                return None
            with training.inserting_before(node):
                args, kwargs = (join.value(*both) for both in _arguments(node, other))
            node.args, node.kwargs = args, kwargs
    except _Differs:
        return None
    return training


def _arguments(node: fx.Node, other: fx.Node) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    return (node.args, other.args), (dict(node.kwargs), dict(other.kwargs))


class _Join:
    """Arguments of a node in both modes as one."""

    def __init__(self, graph: fx.Graph, partners: Mapping[fx.Node, fx.Node]) -> None:
        self._graph, self._partners = graph, partners

    def value(self, training: Any, evaluated: Any) -> Any:
        """Return an argument that has one of two values; raises if it cannot be."""
        if isinstance(training, tuple | list | dict | slice):
            return self._several(training, evaluated)
        if isinstance(training, fx.Node):
            if isinstance(evaluated, fx.Node) and self._partners[evaluated] is training:
                return training
            raise _Differs
        if type(training) is type(evaluated) and training == evaluated:
            return training
        numbers = isinstance(training, int | float) and type(evaluated) in (int, float)
        if not numbers or evaluated != 0:
            raise _Differs
        flag = self._graph.call_module(FLAG)
        return self._graph.call_function(operator.mul, (flag, training))

    def _several(self, training: Any, evaluated: Any) -> Any:
        if type(training) is not type(evaluated):
            raise _Differs
        if isinstance(training, slice):
            return slice(*self._several(_ends(training), _ends(evaluated)))
        if isinstance(training, dict):
            if training.keys() != evaluated.keys():
                raise _Differs
            return {key: self.value(training[key], evaluated[key]) for key in training}
        if len(training) != len(evaluated):
            raise _Differs
        found = [self.value(*both) for both in zip(training, evaluated, strict=True)]
        return tuple(found) if isinstance(training, tuple) else found


def _ends(part: slice) -> tuple[Any, Any, Any]:
    return part.start, part.stop, part.step
