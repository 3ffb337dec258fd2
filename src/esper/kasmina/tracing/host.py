"""Places for seeds in a user's model: `trace_model` finds them and cuts the model there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.dropout import _DropoutNd

from esper.kasmina.blueprints.registry import BlueprintRegistry
from esper.kasmina.blueprints.seed_places import find_sources, misfit
from esper.kasmina.layers.host_checks import (
    as_host,
    enabled_slots,
    host_is_causal,
    host_segments,
)
from esper.kasmina.layers.initialisation import build, check_not_scripted, check_parameters
from esper.kasmina.tracing.causality import is_causal, suitable_attention
from esper.kasmina.tracing.graph import Additions, ModelGraph, trace_graph
from esper.kasmina.tracing.hooks import CannotHookError, HookedHost, HookPlan, UserHost, plan_hooks
from esper.kasmina.tracing.inputs import Inputs, Raw
from esper.kasmina.tracing.places import NodePlace, choose_places, find_places, named_places
from esper.kasmina.tracing.split import keeps_input, protect_input, split_graph, turn_channels
from esper.kasmina.tracing.tracer import (
    BATCHES,
    UntraceableError,
    kept_random_state,
    pick_output,
)
from esper.leyline.errors import EsperError
from esper.leyline.slots import InjectionSpec, Topology, slot_id
from esper.leyline.user_errors import user_code

Factory = Callable[[], nn.Module]
_MODES: Final = ("eval", "training")


class _SegmentPlan:
    """The graphs of a host's segments; all hosts of a kind share it."""

    def __init__(
        self,
        name: str,
        topology: Topology,
        graphs: Sequence[fx.Graph],
        specs: tuple[InjectionSpec, ...],
        additions: Additions,
    ) -> None:
        self.name = name
        self.topology = topology
        self.graphs = tuple(graphs)
        self.specs = specs
        self.additions = additions
        self.unused: tuple[str, ...] = ()
        """Names of parameters and buffers that no segment uses."""
        self.find_causal: Callable[[], bool] = lambda: True
        self.opened: dict[str, fx.Graph | None] = {}
        """Path of a module kept whole -> its graph, if the mode changes numbers only; filled when
        they are needed (`planting`)."""

    @cached_property
    def causal(self) -> bool:
        """Whether outputs at a position depend on earlier ones only; found when first asked."""
        with kept_random_state():
            return self.find_causal()

    def __deepcopy__(self, memo: dict[int, Any]) -> _SegmentPlan:
        return self


class Segment(fx.GraphModule):
    """A part of a traced model."""

    residual: bool
    """Whether it adds to its input."""

    def recompile(self) -> Any:
        """As in torch, without the report on stderr when a call raises: trials of seeds may."""
        code = super().recompile()
        del type(self).__call__  # so that `nn.Module`'s is found
        return code


class TracedHost(UserHost[_SegmentPlan]):
    """A user's model as a chain of segments."""

    def __init__(self, model: nn.Module, plan: _SegmentPlan) -> None:
        """`model` belongs to the host from now on."""
        plan.additions.install(model)
        super().__init__(model, plan)
        self._segments: tuple[Segment, ...] | None = None

    @property
    def causal(self) -> bool:
        """Whether outputs at a position depend on earlier ones only."""
        return self.plan.causal

    @property
    def unused(self) -> tuple[str, ...]:
        """Names of parameters and buffers that no segment uses; they stay as they are."""
        return self.plan.unused

    def segments(self) -> Sequence[nn.Module]:
        """The parts between the slots."""
        if self._segments is None:
            self._segments = tuple(
                Segment(self.model, graph, "Segment") for graph in self.plan.graphs
            )
            for segment in self._segments:
                segment.residual = keeps_input(segment)
        return self._segments

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the user's model."""
        first, *others = self.segments()
        h = first(*args, **kwargs)
        for segment in others:
            h = segment(h)
        return h


@dataclass(frozen=True, eq=False)
class HostTrace:
    """A user's model and its places for seeds, and how it is built and called."""

    factory: Factory
    """Builds one host; a new one at each call."""
    topology: Topology
    """Kind of the activations at the slots; "mlp" if there are none."""
    slots: tuple[str, ...]
    """Ids in order of execution."""
    places: dict[str, str]
    """Slot id -> where it is, for example `after layer1.0`."""
    name: str
    """Class of the user's model."""
    inputs: Inputs
    """How it is called."""
    untraced: dict[str, str]
    """Paths of modules kept whole -> why."""
    hooked: str = ""
    """Why the model runs whole, by hooks; empty if it was traced."""
    offered: tuple[str, ...] | None = None
    """Blueprints to choose from; None: all that are registered."""

    @cached_property
    def fitting(self) -> dict[str, tuple[str, ...]]:
        """Slot id -> blueprints that fit it; found when first asked."""
        return _fitting(self)

    @cached_property
    def blueprints(self) -> tuple[str, ...]:
        """Blueprints that fit at least one slot."""
        found = {name for names in self.fitting.values() for name in names}
        return tuple(name for name in self._candidates if name in found)

    @property
    def _candidates(self) -> tuple[str, ...]:
        return BlueprintRegistry.names(self.topology) if self.offered is None else self.offered


def trace_model(
    model: nn.Module | Factory,
    example: Raw,
    slots: int | Sequence[str] = 8,
    output: str | int | None = None,
    needs_slots: bool = True,
    runs: bool = False,
) -> HostTrace:
    """Find places for seeds in any model, by one example batch; the model itself is not changed.

    `model`: an instance, whose weights all members start from, or a class or factory, which gives
    each member its own. `slots`: how many at most, or paths of the modules they come after.
    `output`: index or key of the tensor to train on, if the model returns several. `needs_slots`:
    whether a model without a place for a seed is an error; otherwise its trace has no slots.
    `runs`: it is known to run on the example.
    """
    with kept_random_state():
        traced = _Tracing(factory_of(model), example, output, runs)
        return traced.run(slots) if needs_slots else traced.run_anyhow(slots)


class _Tracing:
    """One model on its way to a trace."""

    def __init__(
        self, factory: Factory, example: Raw, output: str | int | None, runs: bool
    ) -> None:
        self._factory, self._output = factory, output
        self._base = build(factory, 0, "model").cpu()
        check_parameters(self._base)
        self._name = type(self._base).__name__
        self._inputs = Inputs.of(self._base, example)
        self._example = self._inputs.few(example, BATCHES[1])
        if not runs:
            _check_runs(self._name, self._base, self._inputs, example)

    def run(self, slots: int | Sequence[str]) -> HostTrace:
        """Trace it with at least one slot; raises if there is no place for it."""
        _check_slots(slots)
        try:
            traced = self._by_graph(slots)
        except UntraceableError as stopped:
            return self._by_hooks(slots, stopped)
        whole = _largest_part(self._base, traced.untraced)
        if whole is None or not isinstance(slots, int):
            return traced
        reason = f"{whole} is kept whole: {traced.untraced[whole]}"
        try:  # most of the model would have no slots
            hooked = self._by_hooks(slots, UntraceableError(reason, reason))
        except EsperError:
            return traced
        return hooked if len(hooked.slots) > len(traced.slots) else traced

    def run_anyhow(self, slots: int | Sequence[str]) -> HostTrace:
        """Trace it without slots if there is no place for them; slots that are named must exist."""
        if slots != 0:
            try:
                return self.run(slots)
            except UntraceableError:
                if not isinstance(slots, int):
                    raise
        try:
            return self._by_graph(0)
        except UntraceableError as stopped:
            return self._by_hooks(0, stopped)

    def _by_graph(self, slots: int | Sequence[str]) -> HostTrace:
        """Trace the model into a chain of segments."""
        name, base, inputs, example = self._name, self._base, self._inputs, self._example
        traced = trace_graph(base, inputs, example, self._output)
        _check_output(name, traced)
        chosen = _chosen(name, traced, slots) if slots != 0 else []
        specs = tuple(
            InjectionSpec(slot_id(0, col), place.channels, col, place.label)
            for col, place in enumerate(chosen)
        )
        cuts = [
            turn_channels(traced.graph, place.node) if place.channels_last else place.node
            for place in chosen
        ]
        topology = chosen[0].topology if chosen else "mlp"
        graphs = split_graph(traced.graph, cuts)
        plan = _SegmentPlan(name, topology, graphs, specs, traced.additions)
        _check_same(base, plan, inputs, example, self._output)
        kind: type[TracedHost] = type(name, (TracedHost,), {})  # errors and saves name the class
        plan.find_causal = lambda: is_causal(
            kind(copy.deepcopy(base), plan).eval(), inputs, example
        )
        host = _host_factory(self._factory, kind, plan)
        return _host_trace(host, plan, name, inputs, traced.untraced)

    def _by_hooks(self, slots: int | Sequence[str], stopped: UntraceableError) -> HostTrace:
        """Let the model run whole; raises what stopped the trace if that cannot be either."""
        try:
            plan = plan_hooks(self._base, self._inputs, self._example, slots, self._output)
        except CannotHookError as error:
            raise UntraceableError(
                f"{stopped}; it cannot run whole, by hooks, either: {error}", stopped.reason
            ) from error
        if plan is None:
            raise stopped
        kind: type[HookedHost] = type(self._name, (HookedHost,), {})
        host = _host_factory(self._factory, kind, plan)
        return _host_trace(host, plan, self._name, self._inputs, hooked=stopped.reason)


def _host_factory(factory: Factory, kind: Callable[..., nn.Module], plan: object) -> Factory:
    def host() -> nn.Module:
        return kind(factory().cpu(), plan)

    return host


def _largest_part(base: nn.Module, paths: Iterable[str]) -> str | None:
    """Return the path of the module, among these, that has most of the model's parameters."""
    every = sum(p.numel() for p in base.parameters())
    for path in paths:
        if 2 * sum(p.numel() for p in base.get_submodule(path).parameters()) > every:
            return path
    return None


def _host_trace(
    host: Factory,
    plan: _SegmentPlan | HookPlan,
    name: str,
    inputs: Inputs,
    untraced: dict[str, str] | None = None,
    hooked: str = "",
) -> HostTrace:
    ids = tuple(spec.slot_id for spec in plan.specs)
    return HostTrace(
        factory=host,
        topology=plan.topology,
        slots=ids,
        places={spec.slot_id: spec.surface for spec in plan.specs},
        name=name,
        inputs=inputs,
        untraced=untraced or {},
        hooked=hooked,
    )


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
    if isinstance(slots, int) and slots < 1:
        raise EsperError(f"slots={slots}: must be 1 or more")


def _chosen(name: str, traced: ModelGraph, slots: int | Sequence[str]) -> list[NodePlace]:
    places = find_places(traced)
    whole = next(iter(traced.untraced.items()), None)
    kept = f"{whole[0]} is kept whole: {whole[1]}" if whole else ""
    if not places:
        reason = f" ({kept})" if kept else ""
        raise UntraceableError(
            f"{name} has no place for a seed{reason}: somewhere between two layers with parameters "
            f"one float32 tensor, batch first, of 2 to 4 axes must be all that is passed on",
            kept or "nowhere in it a single tensor is passed on",
        )
    if isinstance(slots, int):
        return choose_places(places, slots)
    if any(_is_inside(path, slots) for path in traced.untraced):
        raise UntraceableError(f"{name}: {kept}", kept)
    return named_places(places, slots, traced.root)


def _is_inside(path: str, slots: Sequence[str]) -> bool:
    """Whether a slot is named inside a module that is kept whole."""
    return any(str(slot).removeprefix("after ").startswith(f"{path}.") for slot in slots)


def _check_output(name: str, traced: ModelGraph) -> None:
    output = next(node for node in traced.graph.nodes if node.op == "output")
    value = output.args[0]
    values = value.meta["values"] if isinstance(value, fx.Node) else None
    if values is None or not isinstance(values[0], Tensor):
        raise EsperError(f"{name} returns no tensor that depends on its input: see output=")
    if values[0].ndim < 1 or (len(values[0]), len(values[1])) != BATCHES:
        raise EsperError(
            f"{name} turns a batch of {BATCHES[0]} into {tuple(values[0].shape)}: its output must "
            f"be batch first; pick another with output="
        )


def _complete(
    plan: _SegmentPlan, base: nn.Module, inputs: Inputs, values: list[Tensor]
) -> dict[str, Tensor]:
    """Protect inputs of segments from writes in place; find what no segment uses.

    Returns what the chain computes, by mode.
    """
    host, found = TracedHost(copy.deepcopy(base), plan), {}
    segments = host.segments()
    for mode in _MODES:
        host.train(mode == "training")
        with torch.no_grad(), kept_random_state():
            given = [value.clone() for value in values]
            h = inputs.call(segments[0], given)
            _protect(plan.graphs[0], given, inputs.form == "dict")
            for graph, segment in zip(plan.graphs[1:], segments[1:], strict=True):
                given = [h.clone()]
                h = segment(*given)
                _protect(graph, given)
        found[mode] = h.clone()
    used = {id(t) for s in segments for t in (*s.parameters(), *s.buffers())}
    state = (*host.named_parameters(), *host.named_buffers())
    plan.unused = tuple(name for name, tensor in state if id(tensor) not in used)
    return found


def _protect(graph: fx.Graph, given: list[Tensor], in_dict: bool = False) -> None:
    """Let a graph copy what it was given if it wrote over it."""
    if any(value._version for value in given):
        read = [node for node in graph.nodes if node.op == "placeholder"]
        for node in list(read[0].users) if in_dict else read:
            protect_input(graph, node)


def _check_same(
    base: nn.Module, plan: _SegmentPlan, inputs: Inputs, example: Raw, output: Any
) -> None:
    """Complete the plan; raise unless the chain equals the model in eval and in training mode."""
    name, values = type(base).__name__, inputs.batch(example, BATCHES[1])
    differs = _differing_mode(base, plan, inputs, values, output)
    if differs == "training":
        # Parts that the output does not depend on, such as auxiliary heads, are not in the chain,
        # and the random numbers of their dropout are not drawn.
        differs = _differing_mode(_without_dropout(base), plan, inputs, values, output)
    if differs:
        raise UntraceableError(
            f"{name} computes something else in {differs} mode than its trace: something in its "
            f"forward depends on more than its inputs and tensors",
            f"its trace computes something else in {differs} mode",
        )


def _differing_mode(
    base: nn.Module, plan: _SegmentPlan, inputs: Inputs, values: list[Tensor], output: Any
) -> str:
    """Return the mode in which chain and model differ, with the same random numbers, or ""."""
    model, chain = copy.deepcopy(base), _complete(plan, base, inputs, values)
    for mode, found in chain.items():
        model.train(mode == "training")
        given = [value.clone() for value in values]
        failing = user_code(f"{type(base).__name__} fails on the example")
        with torch.no_grad(), kept_random_state(), failing:
            expected = pick_output(inputs.call(model, given), output)
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


def _fitting(trace: HostTrace) -> dict[str, tuple[str, ...]]:
    if not trace.slots:
        return {}
    host = as_host(build(trace.factory, 0))
    recipes = [BlueprintRegistry.get(name, trace.topology) for name in trace._candidates]
    specs = enabled_slots(host, trace.slots, len(host_segments(host)))
    made_from = find_sources(host, specs) if any(r.from_host for r in recipes) else {}
    causal = all(host_is_causal(host) for r in recipes if r.reads_ahead)
    fitting = {}
    for slot, spec in enumerate(specs):
        fits = [r.name for r in recipes if misfit(r, spec, made_from.get(slot), host) is None]
        fitting[spec.slot_id] = suitable_attention(fits, causal)
    return fitting
