"""The graph of a user's model, cleaned up: no lost writes, no frozen dropout, nothing unused."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass, field
from typing import Any, Final

import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from esper.device.rng import forked_rng
from esper.kasmina.plain.plain_graph import TrainingFlag
from esper.kasmina.tracing.inputs import Inputs, Raw
from esper.kasmina.tracing.module_stacks import owner_path
from esper.kasmina.tracing.tracer import (
    BATCHES,
    FLAG,
    Level,
    ModeError,
    ModelTracer,
    UntraceableError,
)
from esper.leyline.errors import EsperError
from esper.leyline.user_errors import format_error

_MAX_TRACES: Final = 50
"""Each repetition makes one more module a leaf."""
_DROPOUTS: Final[dict[Any, type[nn.Module]]] = {
    F.dropout: nn.Dropout,
    F.dropout1d: nn.Dropout1d,
    F.dropout2d: nn.Dropout2d,
    F.dropout3d: nn.Dropout3d,
    F.alpha_dropout: nn.AlphaDropout,
    F.feature_alpha_dropout: nn.FeatureAlphaDropout,
}
"""Functions that depend on the training mode -> modules that do."""


@dataclass(slots=True, eq=False)
class Additions:
    """What a model needs for its graph to run: tensors as buffers, flags, dropout modules."""

    constants: dict[str, Tensor] = field(default_factory=dict)
    """Made in `forward` from nothing of the model."""
    attributes: tuple[str, ...] = ()
    """Paths of tensors that are plain attributes; they become buffers."""
    flags: tuple[str, ...] = ()
    """Paths of modules whose training mode is read."""
    modules: dict[str, nn.Module] = field(default_factory=dict)
    """Dropout that was called as a function, by path."""

    def install(self, root: nn.Module) -> None:
        """Add them to another model of the kind."""
        for name, value in self.constants.items():
            root.register_buffer(name, value.clone(), persistent=False)
        for path in self.attributes:
            owner, _, name = path.rpartition(".")
            module = root.get_submodule(owner)
            value = module.__dict__.pop(name)
            module.register_buffer(name, value, persistent=False)
        for path in self.flags:
            root.get_submodule(path).add_module(FLAG, TrainingFlag())
        for path, layer in self.modules.items():
            owner, _, name = path.rpartition(".")
            root.get_submodule(owner).add_module(name, copy.deepcopy(layer))


@dataclass(frozen=True, slots=True, eq=False)
class ModelGraph:
    """The traced model. Every node has `meta["values"]` and `meta["level"]`."""

    graph: fx.Graph
    root: nn.Module
    """The copy it was traced on, additions included."""
    ends: dict[fx.Node, list[str]]
    """Node -> paths of the modules that return it, inner ones first."""
    additions: Additions
    untraced: dict[str, str]
    """Paths of modules kept whole -> why."""


def trace_graph(
    model: nn.Module, inputs: Inputs, example: Raw, output: str | int | None
) -> ModelGraph:
    """Trace a copy of the model; raises with the operation that stops the trace.

    The outermost `forward` may do more in one mode than in the other, such as auxiliary outputs, if
    the output that is trained on does not depend on it.
    """
    try:
        return _trace_mode(model, inputs, example, output, None)
    except UntraceableError as error:
        if not isinstance(error.__cause__, ModeError):
            raise
        found, training = (
            _trace_mode(model, inputs, example, output, mode) for mode in (False, True)
        )
        if _described(found) != _described(training):
            raise
        return found


def _described(model: ModelGraph) -> list[tuple[Any, ...]]:
    """Return what each node of a graph calls, with nodes by number; equal for equal graphs."""
    number = {node: index for index, node in enumerate(model.graph.nodes)}
    return [
        (node.op, node.target, str(map_arg((node.args, node.kwargs), lambda n: number[n])))
        for node in model.graph.nodes
    ]


def _trace_mode(
    model: nn.Module, inputs: Inputs, example: Raw, output: str | int | None, mode: bool | None
) -> ModelGraph:
    forced: set[str] = set()
    for _ in range(_MAX_TRACES):
        root = copy.deepcopy(model).eval()
        small, large = (inputs.batch(example, samples) for samples in BATCHES)
        tracer = ModelTracer(inputs, (small, large), output, mode)
        tracer.forced |= forced
        try:
            with forked_rng(0):
                graph = tracer.trace(root)
        except EsperError:
            raise
        except Exception as error:  # user code may fail on a proxy in any way
            raise UntraceableError(format_error(error)) from error
        _follow_writes(graph)
        lost = _lost_writes(graph)
        if lost is None:
            break
        if not lost:
            raise UntraceableError("its forward writes into a view or a buffer in place")
        forced.add(lost)
    additions = Additions()
    _replace_dropout(graph, root, additions)
    _remove_dead(graph)
    _find_additions(graph, root, additions)
    return ModelGraph(graph, root, tracer.ends, additions, _used_leaves(graph, tracer))


def turn_channels(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """Return `[B, C, H, W]` of a tensor `[B, H, W, C]`; what reads the tensor gets it from that."""
    with graph.inserting_after(node):
        first = graph.call_method("permute", (node, 0, 3, 1, 2))
    with graph.inserting_after(first):
        back = graph.call_method("permute", (first, 0, 2, 3, 1))
    with graph.inserting_after(back):
        same = graph.call_method("contiguous", (back,))  # seeds do not keep the order in memory
    node.replace_all_uses_with(same, delete_user_cb=lambda user: user is not first)
    return first


def copy_inputs(graph: fx.Graph, inputs: Inputs) -> None:
    """Let a graph work on copies of its inputs, which are the data."""
    given = [node for node in graph.nodes if node.op == "placeholder"]
    for node in list(given[0].users) if inputs.form == "dict" else given:
        with graph.inserting_after(node):
            copied = graph.call_method("clone", (node,))
        node.replace_all_uses_with(copied, delete_user_cb=lambda user, own=copied: user is not own)


def _used_leaves(graph: fx.Graph, tracer: ModelTracer) -> dict[str, str]:
    called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
    reasons = dict.fromkeys(tracer.forced, "it writes in place") | tracer.untraced
    return {path: reason for path, reason in reasons.items() if path in called}


def _writes(node: fx.Node) -> list[fx.Node]:
    """Return the arguments that a node modifies in place, in training mode if not in eval mode."""
    found: list[fx.Node] = list(node.meta.get("writes", ()))
    first = node.args[0] if node.args else None
    if node.meta.get("inplace") and isinstance(first, fx.Node) and first not in found:
        found.append(first)
    return found


def _follow_writes(graph: fx.Graph) -> None:
    """Let what comes after a write in place use its result instead of its argument."""
    order = {node: index for index, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        for base in _writes(node):
            same = all(
                a is b for a, b in zip(node.meta["values"], base.meta["values"], strict=True)
            )
            if not same:
                continue
            for user in list(base.users):
                if order[user] > order[node]:
                    user.replace_input_with(base, node)
                    written = user.meta.get("writes", ())
                    user.meta["writes"] = [node if n is base else n for n in written]


def _lost_writes(graph: fx.Graph) -> str | None:
    """Return the path of a module that writes what nothing in the graph reads; None: there is none.

    Such a write reaches others through a view or a buffer, which the graph does not show. An empty
    path is the model itself.
    """
    for node in graph.nodes:
        if _writes(node) and not node.users and node.op != "output":
            return owner_path(node)
    return None


def _remove_dead(graph: fx.Graph) -> None:
    """Remove nodes without effect; fx's own function would also remove writes in place."""
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)


def _replace_dropout(graph: fx.Graph, root: nn.Module, additions: Additions) -> None:
    """Replace functions that are given the training mode by modules, which survive an export."""
    for node in list(graph.nodes):
        kind = _DROPOUTS.get(node.target) if node.op == "call_function" else None
        if kind is None:
            continue
        given = inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments
        flag = given.get("training")
        if not isinstance(flag, fx.Node) or flag.op != "call_module":
            continue
        if not isinstance(given.get("p", 0.5), float | int):
            continue
        owner = str(flag.target).rpartition(".")[0]
        name = f"dropout_{len(additions.modules)}"
        path = f"{owner}.{name}" if owner else name
        layer = kind(p=float(given.get("p", 0.5)))
        layer.training = False
        additions.modules[path] = layer
        root.get_submodule(owner).add_module(name, layer)
        with graph.inserting_after(node):
            fresh = graph.call_module(path, (given["input"],))
        fresh.meta = {**node.meta, "level": Level.DATA, "writes": []}
        node.replace_all_uses_with(fresh)
        graph.erase_node(node)


def _find_additions(graph: fx.Graph, root: nn.Module, additions: Additions) -> None:
    """Find tensors that are no parameters or buffers, and make them buffers of `root`."""
    known = {name for name, _ in root.named_parameters(remove_duplicate=False)}
    known |= {name for name, _ in root.named_buffers(remove_duplicate=False)}
    attributes: list[str] = []
    flags: list[str] = []
    for node in graph.nodes:
        path = str(node.target)
        if node.op == "get_attr" and path not in known:
            owner, _, name = path.rpartition(".")
            module = root.get_submodule(owner)
            value = module.__dict__.pop(name)
            if not isinstance(value, Tensor):
                raise EsperError(f"{path!r} is {type(value).__name__}: a graph holds only tensors")
            module.register_buffer(name, value, persistent=False)
            known.add(path)
            if name.startswith("_tensor_constant"):
                additions.constants[path] = value
            else:
                attributes.append(path)
        if node.op == "call_module" and path.rpartition(".")[2] == FLAG:
            flags.append(path.rpartition(".")[0])
    additions.attributes = tuple(dict.fromkeys(attributes))
    additions.flags = tuple(dict.fromkeys(flags))
