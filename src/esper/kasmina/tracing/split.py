"""Split the graph of a model into a chain: the first part takes its inputs, others one tensor.

What depends only on sizes, parameters or constants is computed again where a later part needs it;
sizes of tensors that are gone are read from the part's own input.
"""

from __future__ import annotations

import copy
import math
import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from esper.device.rng import forked_rng
from esper.kasmina.tracing.module_stacks import kept_stack
from esper.kasmina.tracing.tracer import BATCHES, Level, Pair, is_accessor
from esper.leyline.errors import EsperError


def split_graph(graph: fx.Graph, cuts: Sequence[fx.Node]) -> list[fx.Graph]:
    """Return a graph per part; part k begins with the tensor `cuts[k - 1]`."""
    nodes = list(graph.nodes)
    output = next(node for node in nodes if node.op == "output")
    last = output.args[0]
    assert isinstance(last, fx.Node)
    begins, ends = (None, *cuts), (*cuts, last)
    return [_Part(nodes, begin, end).build() for begin, end in zip(begins, ends, strict=True)]


def turn_channels(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """Return `[B, C, H, W]` of a tensor `[B, H, W, C]`; what reads the tensor gets it from that."""
    small, large = node.meta["values"]
    with graph.inserting_after(node):
        first = graph.call_method("permute", (node, 0, 3, 1, 2))
    with graph.inserting_after(first):
        back = graph.call_method("permute", (first, 0, 2, 3, 1))
    with graph.inserting_after(back):
        same = graph.call_method("contiguous", (back,))  # seeds do not keep the order in memory
    turned = (small.permute(0, 3, 1, 2), large.permute(0, 3, 1, 2))
    for added, values in ((first, turned), (back, (small, large)), (same, (small, large))):
        added.meta = {"values": values, "level": Level.DATA, "writes": []}
    node.replace_all_uses_with(same, delete_user_cb=lambda user: user is not first)
    return first


class _Part:
    """One graph in the making, from the tensor `begin`, or the inputs, to the tensor `end`."""

    def __init__(self, nodes: Sequence[fx.Node], begin: fx.Node | None, end: fx.Node) -> None:
        self._end = end
        self._live: Pair = ((), ()) if begin is None else begin.meta["values"]
        self._needed = _needed(nodes, begin, end)
        self._graph = fx.Graph()
        given = [n for n in nodes if n.op == "placeholder"] if begin is None else [begin]
        self._made: dict[fx.Node, Any] = {
            node: self._graph.placeholder("x" if begin else str(node.target)) for node in given
        }
        self._x = self._made[given[0]]

    def build(self) -> fx.Graph:
        for node in self._needed:
            self._copy(node)
        self._graph.output(self._made[self._end])
        self._graph.lint()
        return self._graph

    def _copy(self, node: fx.Node) -> Any:
        made = self._graph.node_copy(node, self._find)
        made.meta, made.type = kept_stack(node), None
        self._made[node] = made
        return made

    def _find(self, node: fx.Node) -> Any:
        """Return the node of this graph, made when it is first needed."""
        if node in self._made:
            return self._made[node]
        if node.meta["level"] == Level.DATA:
            raise EsperError(f"{node.name} is not passed on: this is a bug of Esper's tracing")
        gone = is_accessor(node) and _source(node).meta["level"] == Level.DATA
        if gone and _source(node) not in self._made:
            self._made[node] = self._from_input(node.meta["values"], _axis(node))
            return self._made[node]
        return self._copy(node)

    def _from_input(self, value: Pair, axis: int | None) -> Any:
        """Return a size, type or device of a tensor that is gone, from this part's input."""
        a, b = value
        if isinstance(a, tuple):
            return tuple(
                self._from_input(pair, index) for index, pair in enumerate(zip(a, b, strict=True))
            )
        if isinstance(a, torch.device):
            return self._graph.call_function(getattr, (self._x, "device"))
        if not isinstance(a, int) or isinstance(a, bool):
            return a
        if a != b:  # in proportion to the batch
            size = self._graph.call_method("size", (self._x, 0))
            times = a // BATCHES[0]
            return size if times == 1 else self._graph.call_function(operator.mul, (size, times))
        shape: Mapping[int, int] = dict(enumerate(_shape(self._live[0])))
        same = [k for k, size in shape.items() if k and size == a]
        found = axis if axis in same else same[0] if len(same) == 1 else None
        return a if found is None else self._graph.call_method("size", (self._x, found))


def is_readable(value: Pair) -> bool:
    """Whether a part can have a size, type or device of a tensor that is gone: it is the same for
    every batch, or in proportion to it.
    """
    a, b = value
    if isinstance(a, tuple):
        return all(map(is_readable, zip(a, b, strict=True)))
    return bool(a == b) or (isinstance(a, int) and a * BATCHES[1] == b * BATCHES[0])


def _needed(nodes: Sequence[fx.Node], begin: fx.Node | None, end: fx.Node) -> list[fx.Node]:
    """Return the nodes that depend on data between two tensors, in order."""
    order = {node: index for index, node in enumerate(nodes)}
    start = -1 if begin is None else order[begin]
    wanted, stack = {end}, [end]
    while stack:
        for source in stack.pop().all_input_nodes:
            gone = source.meta["level"] == Level.DATA and order[source] <= start
            if source not in wanted and not gone:
                wanted.add(source)
                stack.append(source)
    return [
        node for node in nodes
        if node in wanted
        and node is not begin
        and node.op != "placeholder"
        and node.meta["level"] == Level.DATA
    ]  # fmt: skip


def _source(node: fx.Node) -> fx.Node:
    return node.all_input_nodes[0]


def _axis(node: fx.Node) -> int | None:
    """Return the axis that `x.size(axis)` asks for."""
    if node.op != "call_method" or node.target != "size" or len(node.args) < 2:
        return None
    axis, source = node.args[1], _source(node).meta["values"][0]
    return axis % source.ndim if isinstance(axis, int) and isinstance(source, Tensor) else None


def _shape(value: object) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, Tensor) else ()


# ---- properties of a part ---------------------------------------------------------------------


def adds_to_input(part: nn.Module, shape: Sequence[int]) -> bool:
    """Whether a part returns its input where all its weights are 0: it adds to it.

    `shape`: of its output, one sample.
    """
    part = copy.deepcopy(part).eval()
    h = torch.linspace(0.5, 1.0, 2 * math.prod(shape)).view(2, *shape)
    with torch.no_grad(), forked_rng(0), warnings.catch_warnings(action="ignore"):
        for parameter in part.parameters():
            parameter.zero_()
        # GELU and SiLU at its end pass large numbers as they are, ReLU6 small ones.
        return any(_returns(part, scale * h) for scale in (1.0, 60.0))


def _returns(part: nn.Module, h: Tensor) -> bool:
    try:
        out = part(h.clone())
    except Exception:  # it takes other inputs
        return False
    return isinstance(out, Tensor) and out.shape == h.shape and torch.allclose(out, h)


def protect_input(graph: fx.Graph, x: fx.Node) -> None:
    """Let a graph work on a copy of a tensor it is given, which others read too."""
    with graph.inserting_after(x):
        copied = graph.call_method("clone", (x,))
    x.replace_all_uses_with(copied, delete_user_cb=lambda user: user is not copied)
