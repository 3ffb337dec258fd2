"""A model that torch.fx cannot trace: it runs whole, and forward hooks hold the slots.

`planting` makes an ordinary module of it.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from esper.device.rng import forked_rng
from esper.kasmina.tracing.hook_places import HookPlace, hook_places
from esper.kasmina.tracing.inputs import Inputs, Raw
from esper.kasmina.tracing.places import slot_specs
from esper.kasmina.tracing.tracer import BATCHES, check_output, pick_output
from esper.leyline.slots import InjectionSpec, Topology
from esper.leyline.user_errors import user_code


@dataclass(frozen=True, slots=True)
class OutputKey:
    """Where the tensor to train on is in what a model returns."""

    key: str | int | None
    """None if it is all that is returned."""
    attribute: bool = False

    @staticmethod
    def of(out: Any, output: str | int | None) -> OutputKey:
        """Find the key of the output that `pick_output` picks."""
        picked = pick_output(out, output)
        if out is picked:
            return OutputKey(None)
        if isinstance(out, dict):
            return OutputKey(next(key for key, value in out.items() if value is picked))
        if isinstance(output, str) and getattr(out, output, None) is picked:
            return OutputKey(output, attribute=True)
        if dataclasses.is_dataclass(out):
            names = (part.name for part in dataclasses.fields(out))
            return OutputKey(next(n for n in names if getattr(out, n) is picked), attribute=True)
        if output is not None:
            return OutputKey(output)
        return OutputKey(next(index for index, value in enumerate(out) if value is picked))

    def pick(self, out: Any) -> Any:
        """Return the tensor."""
        if self.key is None:
            return out
        return getattr(out, str(self.key)) if self.attribute else out[self.key]


@dataclass(frozen=True, slots=True, eq=False)
class HookPlan:
    """Where the slots of a model are that runs whole."""

    topology: Topology
    specs: tuple[InjectionSpec, ...]
    places: tuple[HookPlace, ...]
    key: OutputKey
    training_key: OutputKey
    """In training mode, where a model may return auxiliary outputs, too."""
    writes_input: bool
    """Whether the model writes over its input, which is the data."""


# ---- hooks of a planted model: graphs, so that nothing of Esper is in it ------------------------


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


# ---- from a model to a plan -------------------------------------------------------------------


def plan_hooks(
    base: nn.Module,
    inputs: Inputs,
    example: Raw,
    slots: int | Sequence[str],
    output: str | int | None,
) -> HookPlan:
    """Find the places of a model and check that it runs by hooks."""
    name = type(base).__name__
    keys, writes = {}, False
    for training in (True, False):
        values = inputs.batch(example, BATCHES[0])
        mode = "training" if training else "eval"
        failing = user_code(f"{name} fails on an example in {mode} mode")
        with torch.no_grad(), forked_rng(0), failing:
            out = inputs.call(copy.deepcopy(base).train(training), values)
        keys[training] = OutputKey.of(out, output)
        check_output(name, keys[training].pick(out), BATCHES[0])
        writes |= any(value._version for value in values)
    places = hook_places(base, inputs, example, slots, output) if slots != 0 else []
    topology = places[0].topology if places else "mlp"
    return HookPlan(topology, slot_specs(places), tuple(places), keys[False], keys[True], writes)
