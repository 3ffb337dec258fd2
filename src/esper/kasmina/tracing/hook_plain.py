"""Seeds in a model that runs by hooks, which stays of the user's own class.

Seeds are `fx.GraphModule`s below `seeds`, registered as forward hooks of the modules they follow:
nothing of Esper is in the model, and copies and pickles keep them.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from torch import fx, nn

if TYPE_CHECKING:
    from esper.kasmina.tracing.hooks import OutputKey


def seed_hook(seed: fx.GraphModule, in_tuple: bool) -> fx.GraphModule:
    """Return a seed as a forward hook: a module of (module, args, output)."""
    graph = fx.Graph()
    output = _hook_output(graph)
    h = graph.call_function(operator.getitem, (output, 0)) if in_tuple else output
    x = next(node for node in seed.graph.nodes if node.op == "placeholder")
    grown = graph.graph_copy(seed.graph, {x: h})
    assert isinstance(grown, fx.Node), "a seed returns one tensor"
    if in_tuple:
        others = graph.call_function(operator.getitem, (output, slice(1, None)))
        graph.output(graph.call_function(operator.add, ((grown,), others)))
    else:
        graph.output(grown)
    graph._tracer_cls = seed.graph._tracer_cls
    return fx.GraphModule(seed, graph, "Seed")


def pick_hook(key: OutputKey) -> fx.GraphModule:
    """Return a forward hook that picks the tensor that was trained on."""
    graph = fx.Graph()
    output = _hook_output(graph)
    pick = getattr if key.attribute else operator.getitem
    graph.output(graph.call_function(pick, (output, key.key)))
    return fx.GraphModule(nn.Module(), graph, "Pick")


def _hook_output(graph: fx.Graph) -> fx.Node:
    """Add the arguments of a forward hook; return the last, the module's output."""
    graph.placeholder("hooked")
    graph.placeholder("given")
    return graph.placeholder("output")
