"""Graphs that take a packed input, called as the user's model is."""

from __future__ import annotations

import operator

from torch import fx

from esper.kasmina.tracing.inputs import Inputs
from esper.leyline.errors import EsperError


def take_raw_inputs(graph: fx.Graph, inputs: Inputs) -> None:
    """Replace the packed input by the raw ones."""
    packed = next(node for node in graph.nodes if node.op == "placeholder")
    if not inputs.packed and inputs.form in ("tensor", "positional"):
        return
    with graph.inserting_before(packed):
        if inputs.form == "dict":
            batch = graph.placeholder("batch")
            raw = [graph.call_function(operator.getitem, (batch, s.name)) for s in inputs.specs]
        else:
            raw = [graph.placeholder(spec.name) for spec in inputs.specs]
    if not inputs.packed:
        packed.replace_all_uses_with(raw[0])
    else:
        for node in list(packed.users):
            if not _replace_unpacked(graph, node, inputs, raw):
                raise EsperError("the packed input is read in a way that is not known")
    graph.erase_node(packed)


def _replace_unpacked(graph: fx.Graph, part: fx.Node, inputs: Inputs, raw: list[fx.Node]) -> bool:
    """Replace slice, shape and dtype of one input (`inputs.unpack_one`) by the raw one."""
    for columns, value in zip(inputs.columns(), raw, strict=True):
        if part.target is operator.getitem and part.args[1] == (slice(None), slice(*columns)):
            shaped = next(iter(part.users))
            typed = next(iter(shaped.users))
            typed.replace_all_uses_with(value)
            for node in (typed, shaped, part):
                graph.erase_node(node)
            return True
    return False
