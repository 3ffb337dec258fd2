"""A grown member of a model that runs by hooks, as the user's own class.

Seeds are `fx.GraphModule`s below `seeds`, registered as forward hooks of the modules they follow:
nothing of Esper is in the model, and copies and pickles keep them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, fx, nn

from esper.kasmina.plain.plain_graph import LeafTracer, copied_parts, plain_seed
from esper.kasmina.tracing.inputs import Inputs
from esper.leyline.slots import InjectionSpec

if TYPE_CHECKING:
    from esper.kasmina.tracing.hooks import HookedHost, OutputKey


def grown_model(
    host: HookedHost, seeds: nn.ModuleDict, slots: Sequence[InjectionSpec]
) -> nn.Module:
    """Return a copy of the user's model with live seeds in it, in eval mode.

    It takes the raw inputs and returns the tensor that was trained on.
    """
    segments, live = copied_parts(host, seeds)
    copied: HookedHost = segments[-1][1]  # type: ignore[assignment]
    model = copied.model
    held = nn.ModuleDict()
    for spec in slots:
        if spec.slot_id in live:
            place = copied.plan.places[spec.position]
            held[spec.slot_id] = seed_hook(plain_seed(live[spec.slot_id]), place.in_tuple)
            module = model.get_submodule(place.path)
            module.register_forward_hook(held[spec.slot_id])
    if len(held):
        folder = "seeds"
        while hasattr(model, folder):
            folder += "_"
        model.add_module(folder, held)
    if copied.plan.key.key is not None:
        model.register_forward_hook(pick_hook(copied.plan.key))
    return model.eval()


def packed_model(
    host: HookedHost, seeds: nn.ModuleDict, slots: Sequence[InjectionSpec]
) -> fx.GraphModule:
    """Return the same as a graph that takes packed inputs."""
    whole = _Packed(grown_model(host, seeds, slots), host.plan.inputs)
    graph = _ModelTracer().trace(whole)
    plain = fx.GraphModule(whole, graph, f"Plain{type(host).__name__}")
    plain.graph._tracer_cls = None  # a pickled graph would refer to our tracer
    plain.meta["untraced"] = ("model",)
    return plain.eval()


class _Packed(nn.Module):
    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.model = model
        self._inputs = inputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self._inputs.call(self.model, self._inputs.unpack(x))
        return out


class _ModelTracer(LeafTracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name == "model"


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
