"""Places for seeds in a user's model: `trace_model` finds them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.dropout import _DropoutNd

from esper.kasmina.blueprints.registry import BlueprintRegistry
from esper.kasmina.blueprints.seed_places import misfit
from esper.kasmina.layers.initialisation import build, check_not_scripted, check_parameters
from esper.kasmina.tracing.causality import is_causal, suitable_attention
from esper.kasmina.tracing.graph import (
    Additions,
    ModelGraph,
    copy_inputs,
    trace_graph,
    turn_channels,
)
from esper.kasmina.tracing.hooks import HookPlan, plan_hooks
from esper.kasmina.tracing.inputs import Inputs, Raw
from esper.kasmina.tracing.module_stacks import kept_stack
from esper.kasmina.tracing.places import (
    NodePlace,
    choose_places,
    find_places,
    named_places,
    slot_specs,
)
from esper.kasmina.tracing.tracer import (
    BATCHES,
    Pair,
    UntraceableError,
    check_output,
    kept_random_state,
    pick_output,
)
from esper.leyline.errors import EsperError
from esper.leyline.slots import InjectionSpec, Topology
from esper.leyline.user_errors import user_code

Factory = Callable[[], nn.Module]
_MODES: Final = ("eval", "training")
_NO_PLACE: Final = "nowhere in it a single tensor is passed on"


@dataclass(slots=True, eq=False)
class GraphPlan:
    """A model as one graph, with the places for seeds in it."""

    topology: Topology
    specs: tuple[InjectionSpec, ...]
    nodes: tuple[fx.Node, ...]
    """The node after which each slot's seed is inserted."""
    graph: fx.Graph
    additions: Additions
    unused: tuple[str, ...]
    """Names of parameters and buffers that the graph does not use; they stay as they are."""
    opened: dict[str, fx.Graph | None] = field(default_factory=dict)
    """Path of a module kept whole -> its graph, if the mode changes numbers only; filled when
    they are needed (`planting`)."""


@dataclass(frozen=True, eq=False)
class HostTrace:
    """A user's model and its places for seeds, and how it is built and called."""

    factory: Factory
    """Builds the model, with what its graph needs; a new one at each call."""
    plan: GraphPlan | HookPlan
    name: str
    """Class of the user's model."""
    inputs: Inputs
    """How it is called."""
    example: Raw
    """Inputs of a few samples."""
    untraced: dict[str, str] = field(default_factory=dict)
    """Paths of modules kept whole -> why."""
    hooked: str = ""
    """Why the model runs whole, by hooks; empty if it was traced."""
    offered: tuple[str, ...] | None = None
    """Blueprints to choose from; None: all that are registered."""

    @property
    def topology(self) -> Topology:
        """Kind of the activations at the slots; "mlp" if there are none."""
        return self.plan.topology

    @property
    def slots(self) -> tuple[str, ...]:
        """Ids in order of execution."""
        return tuple(spec.slot_id for spec in self.plan.specs)

    @property
    def places(self) -> dict[str, str]:
        """Slot id -> where it is, for example `after layer1.0`."""
        return {spec.slot_id: spec.surface for spec in self.plan.specs}

    @cached_property
    def fitting(self) -> dict[str, tuple[str, ...]]:
        """Slot id -> blueprints that fit it; found when first asked."""
        recipes = [BlueprintRegistry.get(name, self.topology) for name in self._candidates]
        found = {}
        for spec in self.plan.specs:
            fits = [r.name for r in recipes if misfit(r, spec, None, self) is None]
            causal = all(self.causal for r in recipes if r.reads_ahead)
            found[spec.slot_id] = suitable_attention(fits, causal)
        return found

    @cached_property
    def blueprints(self) -> tuple[str, ...]:
        """Blueprints that fit at least one slot."""
        found = {name for names in self.fitting.values() for name in names}
        return tuple(name for name in self._candidates if name in found)

    @cached_property
    def causal(self) -> bool:
        """Whether outputs at a position depend on earlier ones only; found when first asked."""
        if isinstance(self.plan, HookPlan) or self.topology != "transformer":
            return True  # in doubt; other blueprints know no order of positions
        with kept_random_state():
            model = build(self.factory, 0).eval()
            return is_causal(model, self.plan.graph, self.plan.nodes, self.inputs, self.example)

    @property
    def _candidates(self) -> tuple[str, ...]:
        return BlueprintRegistry.names(self.topology) if self.offered is None else self.offered


def trace_model(
    model: nn.Module | Factory,
    example: Raw,
    slots: int | Sequence[str] = 8,
    output: str | int | None = None,
) -> HostTrace:
    """Find places for seeds in any model, by one example batch; the model itself is not changed.

    `model`: an instance, whose weights all members start from, or a class or factory, which gives
    each member its own. `slots`: how many at most, or paths of the modules they come after, which
    must be places for seeds. `output`: index or key of the tensor to train on, if the model returns
    several.
    """
    _check_slots(slots)
    with kept_random_state():
        return _Tracing(factory_of(model), example, output).run(slots)


class _Tracing:
    """One model on its way to a trace."""

    def __init__(self, factory: Factory, example: Raw, output: str | int | None) -> None:
        self._factory, self._output = factory, output
        self._base = build(factory, 0, "model").cpu()
        check_parameters(self._base)
        self._name = type(self._base).__name__
        self._inputs = Inputs.of(self._base, example)
        self._example = self._inputs.few(example, BATCHES[1])
        _check_runs(self._name, self._base, self._inputs, example)

    def run(self, slots: int | Sequence[str]) -> HostTrace:
        """Trace it; slots that are named must exist."""
        try:
            traced = self._by_graph(slots)
        except UntraceableError as error:
            return self._by_hooks(slots, str(error))
        reason = _lack_of_slots(self._base, traced) if isinstance(slots, int) and slots else ""
        if not reason:
            return traced
        try:
            hooked = self._by_hooks(slots, reason)
        except EsperError:
            return traced
        return hooked if len(hooked.slots) > len(traced.slots) else traced

    def _by_graph(self, slots: int | Sequence[str]) -> HostTrace:
        """Trace the model into a graph."""
        name, base, inputs, example = self._name, self._base, self._inputs, self._example
        traced = trace_graph(base, inputs, example, self._output)
        for value, samples in zip(_outputs(traced.graph), BATCHES, strict=True):
            check_output(name, value, samples)
        chosen = _chosen(traced, slots) if slots != 0 else []
        nodes = tuple(
            turn_channels(traced.graph, place.node) if place.channels_last else place.node
            for place in chosen
        )
        for node in traced.graph.nodes:
            node.meta, node.type = kept_stack(node), None
        _check_same(base, traced, inputs, example, self._output)
        topology, specs = chosen[0].topology if chosen else "mlp", slot_specs(chosen)
        plan = GraphPlan(topology, specs, nodes, traced.graph, traced.additions, _unused(traced))
        host = _host_factory(self._factory, traced.additions)
        return HostTrace(host, plan, name, inputs, example, traced.untraced)

    def _by_hooks(self, slots: int | Sequence[str], reason: str) -> HostTrace:
        """Let the model run whole."""
        plan = plan_hooks(self._base, self._inputs, self._example, slots, self._output)
        host = _host_factory(self._factory, Additions())
        return HostTrace(host, plan, self._name, self._inputs, self._example, {}, reason)


def _host_factory(factory: Factory, additions: Additions) -> Factory:
    def host() -> nn.Module:
        model = factory().cpu()
        additions.install(model)
        return model

    return host


def _lack_of_slots(base: nn.Module, traced: HostTrace) -> str:
    """Return why most of a model that was traced has no slots; empty: it has."""
    every = sum(p.numel() for p in base.parameters())
    for path, why in traced.untraced.items():
        own = sum(p.numel() for p in base.get_submodule(path).parameters())
        if not traced.slots or 2 * own > every:
            return f"{path} is kept whole: {why}"
    return "" if traced.slots else _NO_PLACE


def factory_of(model: nn.Module | Factory) -> Factory:
    """Return a factory of a model: of copies, if it is an instance."""
    if not isinstance(model, nn.Module):
        return model
    whole: nn.Module = getattr(model, "_orig_mod", model)  # of torch.compile
    check_not_scripted(whole)
    name = type(whole).__name__
    with user_code(f"{name} cannot be copied", "give its class or a function that builds it"):
        base = copy.deepcopy(whole).cpu()
    return lambda: copy.deepcopy(base)


def _check_runs(name: str, base: nn.Module, inputs: Inputs, example: Raw) -> None:
    values = inputs.batch(example, BATCHES[0])
    shapes = ", ".join(f"{tuple(value.shape)} {value.dtype}" for value in values)
    with torch.no_grad(), user_code(f"{name} fails on an example {shapes}"):
        inputs.call(copy.deepcopy(base).eval(), values)


def _check_slots(slots: int | Sequence[str]) -> None:
    if isinstance(slots, str):
        raise EsperError(f"slots={slots!r}: give a number or a list of module paths")
    if not isinstance(slots, int) and not slots:
        raise EsperError("slots=[]: name at least one module")
    if isinstance(slots, int) and slots < 0:
        raise EsperError(f"slots={slots}: must be 0 or more")


def _chosen(traced: ModelGraph, slots: int | Sequence[str]) -> list[NodePlace]:
    places = find_places(traced)
    if isinstance(slots, int):
        return choose_places(places, slots) if places else []
    if not places:
        raise UntraceableError(_NO_PLACE)
    for path, why in traced.untraced.items():
        if _is_inside(path, slots):
            raise UntraceableError(f"{path} is kept whole: {why}")
    return named_places(places, slots, traced.root)


def _is_inside(path: str, slots: Sequence[str]) -> bool:
    """Whether a slot is named inside a module that is kept whole."""
    return any(str(slot).removeprefix("after ").startswith(f"{path}.") for slot in slots)


def _outputs(graph: fx.Graph) -> Pair:
    """Return what a graph returns for the two batches."""
    value = next(node for node in graph.nodes if node.op == "output").args[0]
    return value.meta["values"] if isinstance(value, fx.Node) else (value, value)


def _unused(traced: ModelGraph) -> tuple[str, ...]:
    """Return the names of the model's tensors that the graph does not use."""
    model, part = traced.root, fx.GraphModule(traced.root, traced.graph)
    used = {id(tensor) for tensor in (*part.parameters(), *part.buffers())}
    state = (*model.named_parameters(), *model.named_buffers())
    return tuple(name for name, tensor in state if id(tensor) not in used)


def _check_same(
    base: nn.Module, traced: ModelGraph, inputs: Inputs, example: Raw, output: Any
) -> None:
    """Raise unless the graph computes what the model does in eval and in training mode.

    A graph that writes over its inputs is changed to copy them.
    """
    values = inputs.batch(example, BATCHES[1])
    differs = _differing_mode(base, traced, inputs, values, output)
    if differs == "training":
        # Parts that the output does not depend on, such as auxiliary heads, are not in the graph,
        # and the random numbers of their dropout are not drawn.
        differs = _differing_mode(_without_dropout(base), traced, inputs, values, output)
    if differs:
        raise UntraceableError(f"its trace computes something else in {differs} mode")


def _differing_mode(
    base: nn.Module, traced: ModelGraph, inputs: Inputs, values: list[Tensor], output: Any
) -> str:
    """Return the mode in which graph and model differ, with the same random numbers, or ""."""
    model, other = copy.deepcopy(base), copy.deepcopy(base)
    traced.additions.install(other)
    graph = fx.GraphModule(other, traced.graph)
    for mode in _MODES:
        model.train(mode == "training")
        other.train(mode == "training")
        given, same = ([value.clone() for value in values] for _ in range(2))
        failing = user_code(f"{type(base).__name__} fails on the example")
        with torch.no_grad(), kept_random_state(), failing:
            expected = pick_output(inputs.call(model, given), output)
        with torch.no_grad(), kept_random_state():
            found = inputs.call(graph.forward, same)
        if any(value._version for value in same):
            copy_inputs(traced.graph, inputs)
            graph.recompile()
        if found.shape != expected.shape or not torch.allclose(
            found, expected, rtol=1e-4, atol=1e-5, equal_nan=True
        ):
            return mode
    return ""


def _without_dropout(base: nn.Module) -> nn.Module:
    """Return a copy whose dropout layers keep everything."""
    quiet = copy.deepcopy(base)
    for layer in quiet.modules():
        if isinstance(layer, _DropoutNd):
            layer.p = 0.0
    return quiet
