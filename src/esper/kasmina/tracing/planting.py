"""A user's model with seeds in it as an ordinary module that trains, without a population.

    network = planted_model(trace, {"r0c1": "conv_light"}, key=7)     # in training mode
    ...                                                               # any training loop
    model = finished_model(network)                                   # what the user gets

It is called as the user's model is, and names parameters as that does; seeds are under `seeds`.
Nothing is folded: zero scales train as they are. Host weights depend on the key alone, so that runs
with and without seeds start alike.

A model that runs by hooks stays of the user's class, with seeds as forward hooks.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils import _pytree as pytree

from esper.kasmina.blueprints.registry import Blueprint, BlueprintRegistry
from esper.kasmina.blueprints.seed_places import build_seed, misfit
from esper.kasmina.layers.initialisation import build
from esper.kasmina.plain.plain_graph import (
    Added,
    KeepsModes,
    LeafTracer,
    TrainingFlag,
    converted,
    set_tracer,
)
from esper.kasmina.tracing.hooks import HookPlan, OutputKey, pick_hook, seed_hook
from esper.kasmina.tracing.host import GraphPlan, HostTrace
from esper.kasmina.tracing.mode_graphs import mode_graph
from esper.kasmina.tracing.module_stacks import nested_stack
from esper.kasmina.tracing.tracer import FLAG
from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.slots import is_slot_id
from esper.leyline.streams import stream_seed

LAST: Final = "last"
"""Key of a graph's `meta`: slot -> paths of the tensors of its seed that silence it if they are 0;
empty if nothing does."""


def planted_model(trace: HostTrace, seeds: Mapping[str, str], key: int) -> nn.Module:
    """Return the traced model with seeds in some slots, in training mode.

    `seeds`: slot -> blueprint. `key`: names the random numbers of the host's weights; those of a
    seed come from (key, slot, blueprint).
    """
    for slot in seeds:
        if slot not in trace.slots:
            raise unknown_name("slot", slot, trace.slots, f"of {trace.name}")
    model = build(trace.factory, key)
    grown = _grown_seeds(trace, seeds, key)
    if isinstance(trace.plan, HookPlan):
        return _with_hooks(model, trace.plan, grown)
    return _as_graph(trace, trace.plan, model, grown)


# ---- seeds --------------------------------------------------------------------------------


def _grown_seeds(trace: HostTrace, seeds: Mapping[str, str], key: int) -> dict[str, fx.GraphModule]:
    """Return the seeds by slot, as graphs from an activation to the one that is passed on."""
    specs = [spec for spec in trace.plan.specs if spec.slot_id in seeds]
    recipes = [BlueprintRegistry.get(seeds[spec.slot_id], trace.topology) for spec in specs]
    grown = {}
    for spec, recipe in zip(specs, recipes, strict=True):
        reason = misfit(recipe, spec, None, trace)
        if reason is not None:
            raise EsperError(f"slot {spec.slot_id}: blueprint {recipe.name!r} {reason}")
        delta = build(
            partial(build_seed, recipe, spec, None),
            stream_seed(key, spec.slot_id, recipe.name),
            f"blueprint {recipe.name!r}",
        )
        grown[spec.slot_id] = _seed_graph(delta, recipe)
    return grown


def _seed_graph(delta: nn.Module, recipe: Blueprint) -> fx.GraphModule:
    """Trace a seed; it is kept whole if it cannot be, or computes something else in eval mode."""
    added = converted(Added(delta), {}).train()
    graph = LeafTracer().trace(added)
    if not recipe.built_in:
        evaluated = LeafTracer().trace(added.eval())
        if _source(evaluated) != _source(graph):
            graph = _whole_seed()
        added.train()
    seed = fx.GraphModule(added, graph, "Seed")
    seed.meta[LAST] = _last_tensors(seed)
    return seed


def _source(graph: fx.Graph) -> str:
    return graph.python_code("self").src


def _whole_seed() -> fx.Graph:
    graph = fx.Graph()
    h = graph.placeholder("h")
    delta = graph.call_module("delta", (h,))
    graph.output(graph.call_function(operator.add, (h, delta)))
    return graph


# ---- a graph ------------------------------------------------------------------------------


def _as_graph(
    trace: HostTrace, plan: GraphPlan, model: nn.Module, seeds: Mapping[str, fx.GraphModule]
) -> fx.GraphModule:
    """Join the graph of the model and those of the seeds."""
    folder = _add_seeds(model, seeds)
    opened = _opened_modules(plan, model, trace.untraced)
    places = zip(plan.nodes, trace.slots, strict=True)
    after = {n: (seeds[slot].graph, f"{folder}.{slot}.") for n, slot in places if slot in seeds}
    graph = fx.Graph()
    given = [graph.placeholder(name) for name in trace.inputs.arguments]
    graph.output(_append(graph, plan.graph, given, "", opened, after))
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        for name in plan.unused:
            graph.create_node("get_attr", name)  # so that a copy keeps it, as the user's model does
    for node in graph.nodes:
        node.type = None
    set_tracer(graph)
    network = _with_modes(model, graph, f"Plain{trace.name}")
    network.meta[LAST] = {slot: seed.meta[LAST] for slot, seed in seeds.items()}
    network.meta["untraced"] = tuple(path for path in trace.untraced if path not in opened)
    return network


def _opened_modules(
    plan: GraphPlan, model: nn.Module, untraced: Mapping[str, str]
) -> dict[str, fx.Graph]:
    """Return graphs of modules that the trace kept whole, as far as they have one, by path."""
    calls: dict[str, list[fx.Node]] = {}
    for node in plan.graph.nodes:
        if node.op == "call_module" and node.target in untraced:
            calls.setdefault(str(node.target), []).append(node)
    for path, nodes in calls.items():
        if path not in plan.opened:
            plan.opened[path] = mode_graph(model.get_submodule(path), nodes, untraced[path])
    opened = {path: graph for path, graph in plan.opened.items() if graph is not None}
    for path in opened:
        model.get_submodule(path).add_module(FLAG, TrainingFlag())
    return opened


def _append(
    graph: fx.Graph,
    part: fx.Graph,
    given: Sequence[Any],
    prefix: str,
    opened: Mapping[str, fx.Graph],
    seeds: Mapping[fx.Node, tuple[fx.Graph, str]],
    caller: fx.Node | None = None,
) -> Any:
    """Add the nodes of a graph that takes some values; return its output.

    `opened`: graphs to put in the place of modules; `seeds`: node -> graph to put behind it, prefix
    of its paths; `caller`: the node that called a module in whose place the graph is put.
    """
    takes = [node for node in part.nodes if node.op == "placeholder"]
    made: dict[fx.Node, Any] = dict(zip(takes, given, strict=True))
    for node in part.nodes:
        path = f"{prefix}{node.target}"
        if node.op == "output":
            return fx.node.map_arg(node.args[0], lambda n: made[n])
        if node.op == "call_module" and path in opened:
            inside = [made[argument] for argument in node.all_input_nodes]
            made[node] = _append(graph, opened[path], inside, f"{path}.", {}, {}, node)
        elif node.op != "placeholder":
            copied = made[node] = graph.node_copy(node, lambda n: made[n])
            copied.meta = nested_stack(node, prefix, caller)
            if node.op in ("call_module", "get_attr"):
                copied.target = path
        if node in seeds:
            seed, folder = seeds[node]
            made[node] = _append(graph, seed, [made[node]], folder, {}, {})
    raise AssertionError("a graph has an output")


def _with_modes(model: nn.Module, graph: fx.Graph, name: str) -> fx.GraphModule:
    """Return a graph module in training mode, whose layers keep the mode that the model sets."""
    model.train()
    network = fx.GraphModule(model, graph, name)
    evaluated = tuple(path for path, part in model.named_modules() if not part.training)
    known = {path for path, _ in network.named_modules()}
    evaluated = tuple(path for path in evaluated if path in known)
    if evaluated:
        network = KeepsModes(model, graph, name)
        network.evaluated = evaluated
    network.train()
    return network


# ---- hooks --------------------------------------------------------------------------------


class PickOutput(nn.Module):
    """Forward hook of a model that returns other things in training than in eval mode."""

    def __init__(self, key: OutputKey, training_key: OutputKey) -> None:
        super().__init__()
        self.key, self.training_key = key, training_key

    def forward(self, hooked: nn.Module, given: Any, output: Any) -> Any:
        """Return the tensor to train on."""
        return (self.training_key if hooked.training else self.key).pick(output)


def copy_inputs(_: nn.Module, args: Any, kwargs: Any) -> Any:
    """Forward pre-hook of a model that writes over its inputs, which are the data."""
    return pytree.tree_map_only(Tensor, Tensor.clone, (args, kwargs))


def _with_hooks(model: nn.Module, plan: HookPlan, seeds: Mapping[str, fx.GraphModule]) -> nn.Module:
    held = {}
    for spec, place in zip(plan.specs, plan.places, strict=True):
        if spec.slot_id in seeds:
            hook = held[spec.slot_id] = seed_hook(seeds[spec.slot_id], place.in_tuple)
            hook.meta[LAST] = seeds[spec.slot_id].meta[LAST]
            model.get_submodule(place.path).register_forward_hook(hook)
    _add_seeds(model, held)
    if plan.key != plan.training_key:
        model.register_forward_hook(PickOutput(plan.key, plan.training_key))
    elif plan.key.key is not None:
        model.register_forward_hook(pick_hook(plan.key))
    if plan.writes_input:
        model.register_forward_pre_hook(copy_inputs, with_kwargs=True)
    return model.train()


# ---- the seeds of a planted network ---------------------------------------------------------


def _add_seeds(model: nn.Module, seeds: Mapping[str, nn.Module]) -> str:
    """Add seeds to a model; return the name of the module that holds them."""
    folder = "seeds"
    while hasattr(model, folder):
        folder += "_"
    if seeds:
        model.add_module(folder, nn.ModuleDict(dict(seeds)))
    return folder


def seed_folder(network: nn.Module) -> str | None:
    """Return the name of the module that holds the seeds of a planted network; None: it has none.

    A model of the user's may have a part of that name.
    """
    names = [name for name in network._modules if name.rstrip("_") == "seeds"]
    folder = max(names, key=len, default=None)
    if folder is None:
        return None
    slots = [name for name, _ in network.get_submodule(folder).named_children()]
    return folder if slots and all(is_slot_id(name) for name in slots) else None


def silence(network: nn.Module, slot: str) -> None:
    """Let a seed contribute exactly 0, so that all its parameters still train.

    Its last scale becomes 0, or the weights of its last layer, if it has no scale.
    """
    with torch.no_grad():
        for name in silencing(network, slot):
            network.get_parameter(name).zero_()


def silencing(network: nn.Module, slot: str) -> tuple[str, ...]:
    """Names of the parameters that silence a seed if they are 0."""
    folder = seed_folder(network) or ""
    held = network._modules.get(folder)
    slots = [] if held is None else [name for name, _ in held.named_children()]
    if slot not in slots:
        raise unknown_name("slot", slot, slots, "with a seed")
    path = f"{folder}.{slot}"
    found = network.meta.get(LAST, {}).get(slot, ()) if isinstance(network, fx.GraphModule) else ()
    last = found or getattr(network.get_submodule(path), "meta", {}).get(LAST, ())
    if not last:
        raise EsperError(
            f"the seed in slot {slot} cannot start at 0: it ends neither in a scale nor in a layer "
            f"with weights"
        )
    return tuple(f"{path}.{name}" for name in last)


_PASSES: Final = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Identity)
_LAYERS: Final = (nn.Linear, _ConvNd, nn.GroupNorm, nn.LayerNorm)


def _last_tensors(seed: fx.GraphModule) -> tuple[str, ...]:
    """Return the parameters that a seed's delta is a multiple of; empty if there are none."""
    output = next(node for node in seed.graph.nodes if node.op == "output")
    node: Any = output.args[0].args[1]  # of h + delta
    while isinstance(node, fx.Node):
        if node.op == "call_function" and node.target in (operator.mul, torch.mul):
            scales = [a for a in node.args if isinstance(a, fx.Node) and a.op == "get_attr"]
            if scales:
                return _used_once(seed, scales[0], {str(scales[0].target)})
            numbers = [a for a in node.args if isinstance(a, int | float)]
            node = node.args[0] if numbers and isinstance(node.args[0], fx.Node) else None
            continue
        if node.op != "call_module":
            return ()
        path = str(node.target)
        layer = seed.get_submodule(path)
        if isinstance(layer, _LAYERS):
            names = {f"{path}.{name}" for name, _ in layer.named_parameters()}
            return _used_once(seed, node, names)
        node = node.args[0] if isinstance(layer, _PASSES) else None
    return ()


def _used_once(seed: fx.GraphModule, node: fx.Node, names: set[str]) -> tuple[str, ...]:
    """Return the names, if nothing else computes with the parameters: at 0 it would never train."""
    again = [n for n in seed.graph.nodes if n.target == node.target and n.op == node.op]
    every = dict(seed.named_parameters(remove_duplicate=False))
    ours = {id(every[name]) for name in names if name in every}
    tied = [name for name, p in every.items() if id(p) in ours and name not in names]
    used_once = len(again) == 1 and len(node.users) == 1
    return tuple(sorted(names)) if ours and used_once and not tied else ()


def carry_weights(network: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy the weights of a finished run into a network with the same host, seeds as far as equal.

    `state`: the state dict of the planted network that was trained. A seed that only one of the two
    has stays as it is, and so does one of another blueprint.
    """
    folder = seed_folder(network)
    own = network.state_dict(keep_vars=True)
    groups: dict[str, list[str]] = {}
    for name in own:
        head, _, rest = name.partition(".")
        slot = rest.partition(".")[0] if head == folder else ""
        groups.setdefault(slot, []).append(name)
    for slot, names in groups.items():
        wrong = [n for n in names if n not in state or state[n].shape != own[n].shape]
        if wrong and not slot:
            found = tuple(state[wrong[0]].shape) if wrong[0] in state else "missing"
            raise EsperError(
                f"weights of another network: {wrong[0]} is {found}, "
                f"not {tuple(own[wrong[0]].shape)}"
            )
        if not wrong and (not slot or _same_names(state, f"{folder}.{slot}.", names)):
            with torch.no_grad():
                for name in names:
                    own[name].copy_(state[name])


def _same_names(state: Mapping[str, Tensor], prefix: str, names: list[str]) -> bool:
    return {name for name in state if name.startswith(prefix)} == set(names)
