"""Convert a member into an `fx.GraphModule` of plain torch modules with the same output.

Our layers are replaced by torch's (`PLAIN`), the chain of segments and live seeds is traced with
torch's modules as leaves, and `folding` simplifies the graph. Blueprints and hosts made of known
layers need no entry in the table.
"""

from __future__ import annotations

import copy
import logging
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from esper.kasmina.layers.blending import Gate
from esper.kasmina.layers.layers import (
    ChannelNorm,
    Conv1d,
    Conv2d,
    Linear,
    MaxPool1d,
    MaxPool2d,
)
from esper.kasmina.plain.folding import has_effect, simplify
from esper.leyline.slots import InjectionSpec

_log = logging.getLogger(__name__)


def to_plain(
    host: nn.Module, seeds: nn.ModuleDict, slots: Sequence[InjectionSpec]
) -> fx.GraphModule:
    """Return a member as a graph of torch modules with its own parameters, in eval mode.

    `host`: the member's host; `seeds`: its seeds by slot.

    Modules with data-dependent control flow cannot be traced and stay as modules of the user's
    class: `plain.meta["untraced"]` lists them, and a warning is logged.
    """
    chain = _Chain(_links(*_copied_parts(host, seeds), slots))
    return fold(chain, chain.seed_paths, f"Plain{type(host).__name__}", LeafTracer())


class Added(nn.Module):
    """A seed at full strength."""

    def __init__(self, delta: nn.Module) -> None:
        super().__init__()
        self.delta = delta

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + self.delta(h)
        return out


def fold(root: nn.Module, seeds: Sequence[str], name: str, tracer: LeafTracer) -> fx.GraphModule:
    """Trace a module in eval mode and simplify its graph; what cannot be traced is logged.

    `seeds`: prefixes of the paths of seeds, with a dot. Parameters are the module's own.
    """
    whole = fx.GraphModule(root, tracer.trace(root.eval()), name)
    simplify(whole, seeds)
    plain = _without_unused(whole).eval()
    plain.meta["untraced"] = untraced = tracer.untraced_paths(plain.graph)
    if untraced:
        reasons = "; ".join(f"{path} ({tracer.untraced[path]})" for path in untraced)
        _log.info("kept whole, as they cannot be traced: %s", reasons)
    return plain


# ---- replacement of our layers ------------------------------------------------------------


def _conv(layer: Conv1d | Conv2d) -> nn.Module:
    kind = nn.Conv2d if layer.space == 2 else nn.Conv1d
    plain = kind(
        layer.weight.shape[1] * layer.groups,
        layer.weight.shape[0],
        layer.kernel_size,
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        groups=layer.groups,
        bias=layer.bias is not None,
        device="meta",
    )
    return _with_parameters_of(plain, layer)


def _linear(layer: Linear) -> nn.Module:
    out_features, in_features = layer.weight.shape
    bias = layer.bias is not None
    return _with_parameters_of(
        nn.Linear(in_features, out_features, bias=bias, device="meta"), layer
    )


def _channel_norm(layer: ChannelNorm) -> nn.Module:
    return _with_parameters_of(
        nn.GroupNorm(layer.groups, layer.weight.shape[0], device="meta"), layer
    )


def _max_pool(layer: MaxPool1d | MaxPool2d) -> nn.Module:
    kind = nn.MaxPool2d if isinstance(layer, nn.MaxPool2d) else nn.MaxPool1d
    return kind(layer.kernel_size, ceil_mode=layer.ceil_mode)


def _with_parameters_of(plain: nn.Module, layer: nn.Module) -> nn.Module:
    """Give `plain` the layer's own parameters, which keeps ties.

    It was built on the meta device, where initialisation is free and draws no random numbers.
    """
    for name, parameter in layer.named_parameters(recurse=False):
        plain.register_parameter(name, parameter)
    return plain


class _ChannelGate(nn.Module):
    """A gate whose parameters have their final shape, so that it can be traced."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        weight, bias = gate.weight, gate.bias
        self.weight = nn.Parameter(weight.detach().view(gate.shape), weight.requires_grad)
        self.bias = nn.Parameter(bias.detach().view(gate.shape), bias.requires_grad)

    def forward(self, h: Tensor) -> Tensor:
        return torch.sigmoid(self.weight * h + self.bias)


PLAIN: Mapping[type[nn.Module], Callable[[Any], nn.Module]] = {
    Conv1d: _conv,
    Conv2d: _conv,
    Linear: _linear,
    ChannelNorm: _channel_norm,
    MaxPool1d: _max_pool,
    MaxPool2d: _max_pool,
    Gate: _ChannelGate,
}
"""Our layer -> function that builds its torch replacement; other layers are traced."""


def converted(module: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    """Replace all our layers in a module; modules used twice stay shared."""
    if module not in done:
        make = PLAIN.get(type(module))
        done[module] = module if make is None else make(module)
        if make is None:
            for name, child in module._modules.items():
                if child is not None:
                    module._modules[name] = converted(child, done)
    return done[module]


# ---- the chain ----------------------------------------------------------------------------


class _Chain(nn.Module):
    """Named modules run in sequence; parameters keep the names they have in the host."""

    def __init__(self, links: Sequence[tuple[str, nn.Module, bool]]) -> None:
        """`links`: path, module, whether it is a seed."""
        super().__init__()
        self.seed_paths = tuple(f"{path}." for path, _, is_seed in links if is_seed)
        self._links = [module for _, module, _ in links]
        for path, module, _ in links:
            _install(self, path, module)

    def forward(self, x: Tensor) -> Tensor:
        for link in self._links:
            x = link(x)
        return x


def _install(root: nn.Module, path: str, module: nn.Module) -> None:
    *above, name = path.split(".")
    for part in above:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.add_module(name, module)


def _copied_parts(
    host: nn.Module, seeds: nn.ModuleDict
) -> tuple[list[tuple[str | None, nn.Module]], dict[str, nn.Module]]:
    """Copy segments (with their names in the host) and live seeds, replacing our layers."""
    host, live = copy.deepcopy((host, {slot: seed for slot, seed in seeds.items() if seed.alpha}))
    names = {id(module): name for name, module in host.named_modules()}
    segments = list(host.segments())  # type: ignore[operator]
    _clone_buffers((*segments, *live.values()))
    done: dict[nn.Module, nn.Module] = {}
    named = [(names.get(id(s)), converted(s, done)) for s in segments]
    return named, {slot: converted(seed, done) for slot, seed in live.items()}


def _clone_buffers(modules: Sequence[nn.Module]) -> None:
    """Clone buffers: a deep copy of a view would copy the storage of all members."""
    parts = dict.fromkeys(part for module in modules for part in module.modules())
    buffers = [buffer for part in parts for buffer in part.buffers(recurse=False)]
    clones = {id(buffer): buffer.clone() for buffer in buffers}
    for part in parts:
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else clones[id(buffer)]


def _links(
    segments: Sequence[tuple[str | None, nn.Module]],
    seeds: Mapping[str, nn.Module],
    slots: Sequence[InjectionSpec],
) -> list[tuple[str, nn.Module, bool]]:
    names = [name or f"segment{index}" for index, (name, _) in enumerate(segments)]
    folder = "seeds"
    while any(name.split(".")[0] == folder for name in names):
        folder += "_"
    links = []
    for index, (_, module) in enumerate(segments):
        links.append((names[index], module, False))
        for spec in slots:
            if spec.position == index and spec.slot_id in seeds:
                links.append((f"{folder}.{spec.slot_id}", seeds[spec.slot_id], True))
    return links


# ---- tracing ------------------------------------------------------------------------------


_FACTORIES: Final = (
    torch.arange, torch.zeros, torch.ones, torch.full, torch.empty, torch.eye, torch.linspace,
    torch.rand, torch.randn, torch.randint, torch.randperm,
)  # fmt: skip
"""Functions that take sizes, not tensors: fx does not record them by itself."""


class LeafTracer(fx.Tracer):
    """Traces through everything except torch's modules; untraceable modules become leaves."""

    proxy_buffer_attributes = True

    def __init__(self) -> None:
        super().__init__(autowrap_functions=_FACTORIES)
        self._autowrap_search.append(torch)  # so that `torch.arange(size)` is recorded
        self.untraced: dict[str, str] = {}
        """Path -> reason."""
        self._attributes: dict[str, fx.Proxy] = {}

    def trace(
        self, root: nn.Module | Callable[..., Any], concrete_args: dict[str, Any] | None = None
    ) -> fx.Graph:
        """As in torch, without the marks that would wrap torch's own functions for good."""
        graph = super().trace(root, concrete_args)
        for node in graph.nodes:
            node.meta.pop("is_wrapped", None)
        return graph

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Make the innermost module that fails a leaf; its caller is traced further."""
        nodes, depth = len(self.graph.nodes), len(self.module_stack)
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception as error:  # user code may fail on a proxy in any way
            path = self.path_of_module(m)
            self._undo(nodes, depth)
            if isinstance(m, fx.GraphModule):
                return GraphCall(m, self).run(*args)
            self.untraced[path] = str(error).split("\n")[0] or type(error).__name__
            return self.create_proxy("call_module", path, args, kwargs)

    def _undo(self, nodes: int, depth: int) -> None:
        """Remove the nodes recorded since the graph had `nodes` nodes."""
        for node in list(self.graph.nodes)[: nodes - 1 : -1]:
            self.graph.erase_node(node)
            stale = [name for name, proxy in self._attributes.items() if proxy.node is node]
            for name in stale:
                del self._attributes[name]
        while len(self.module_stack) > depth:
            self.module_stack.popitem()

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """Support unpacking, as in `for part in x.chunk(3)`; other loops are untraceable."""
        node, count = obj.node, None
        if node.target in ("chunk", torch.chunk):
            count = node.args[1] if len(node.args) > 1 else node.kwargs.get("chunks")
        if isinstance(count, int):
            parts = [operator.getitem(obj, index) for index in range(count)]
            return iter(parts)
        return super().iter(obj)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        """As in torch; the cache is stored, because removed nodes must be removed from it too."""
        self._attributes = parameter_proxy_cache
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def untraced_paths(self, graph: fx.Graph) -> tuple[str, ...]:
        """Return the paths of untraceable modules in the graph."""
        called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
        return tuple(path for path in self.untraced if path in called)


_OPAQUE: Final = "opaque"
"""Mark of a node that calls a function of the user's which cannot be traced."""


class GraphCall(fx.Interpreter):
    """Records the nodes of a graph as they are, without looking into the functions they call."""

    def __init__(self, module: fx.GraphModule, tracer: fx.Tracer) -> None:
        super().__init__(module)
        self._tracer = tracer

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = pytree.tree_leaves((args, kwargs))
        if not any(isinstance(value, fx.Proxy) for value in given):
            return super().call_function(target, args, kwargs)
        made = self._tracer.create_proxy("call_function", target, args, kwargs)
        owner = (getattr(target, "__module__", None) or "torch").partition(".")[0]
        if owner not in ("torch", "_operator", "builtins", "math"):
            made.node.meta[_OPAQUE] = True
        return made


class TrainingFlag(nn.Module):
    """Returns whether the module it is installed in is in training mode."""

    def forward(self) -> bool:
        return self.training


class KeepsModes(fx.GraphModule):
    """A graph some of whose layers stay in eval mode when it is trained, as in the user's model."""

    evaluated: tuple[str, ...]
    """Their paths."""

    def train(self, mode: bool = True) -> KeepsModes:
        """Set the mode of all layers but these."""
        super().train(mode)
        for path in getattr(self, "evaluated", ()):  # not yet there while it is built
            self.get_submodule(path).training = False
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> KeepsModes:
        copied = super().__deepcopy__(memo)
        assert isinstance(copied, KeepsModes)
        copied.evaluated = self.evaluated
        return copied


def _without_unused(whole: fx.GraphModule) -> fx.GraphModule:
    """Return the graph with only the modules it uses, without references to our tracer."""
    whole.graph.eliminate_dead_code(has_effect)
    set_tracer(whole.graph)
    for node in whole.graph.nodes:
        # fx's own mark: whoever traces the graph again, as pickle does, records the call only.
        node.meta = {"is_wrapped": True} if _OPAQUE in node.meta else {}
        node.type = None  # source text of a type hint, which cannot be pickled
    plain = fx.GraphModule(whole, whole.graph, type(whole).__name__)
    plain.graph.lint()
    return plain


def set_tracer(graph: fx.Graph) -> None:
    """Let a graph be copied and pickled: it refers to its tracer, and is traced again."""
    graph._tracer_cls = LeafTracer if _needs_our_tracer(graph) else None


def _needs_our_tracer(graph: fx.Graph) -> bool:
    """Whether torch's tracer fails on the graph's own code: sizes as limits of a buffer."""
    return any(
        node.op == "call_function"
        and (
            (node.target in _FACTORIES and node.all_input_nodes)
            or (node.target is operator.getitem and len(node.all_input_nodes) > 1)
        )
        for node in graph.nodes
    )
