"""The description of a plain network."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn

from esper.kasmina.plain.plain_graph import KeepsModes
from esper.kasmina.plain_saves.layers import layer_arguments, layer_kind
from esper.kasmina.plain_saves.records import (
    Arguments,
    GraphRecord,
    LayerRecord,
    NodeRecord,
    TensorRecord,
)
from esper.kasmina.plain_saves.values import encode
from esper.kasmina.plain_saves.vocabulary import FUNCTION_NAMES
from esper.leyline.errors import EsperError


def describe(model: nn.Module) -> tuple[GraphRecord, dict[str, Tensor]]:
    """Return the description of a network and its tensors; raises with what has no description."""
    if not isinstance(model, fx.GraphModule):
        raise EsperError(f"it is of your class {type(model).__name__}")
    if isinstance(model, KeepsModes):
        raise EsperError(f"its train() keeps {model.evaluated[0]} in eval mode")
    called = _targets(model, "call_module")
    layers = tuple(_layer(path, model.get_submodule(path)) for path in called)
    tensors, values = _tensors(model, [*called, *_targets(model, "get_attr")])
    return GraphRecord(type(model).__name__, layers, tensors, _nodes(model.graph)), values


def _targets(model: fx.GraphModule, op: str) -> list[str]:
    return list(dict.fromkeys(str(node.target) for node in model.graph.nodes if node.op == op))


def _layer(path: str, layer: nn.Module) -> LayerRecord:
    try:
        kind, arguments = layer_kind(layer), layer_arguments(layer)
        return LayerRecord(path, kind, _encoded(arguments))
    except EsperError as error:
        raise EsperError(f"{path} is {error}") from error


def _encoded(arguments: dict[str, Any]) -> Arguments:
    return tuple((name, encode(value, {})) for name, value in arguments.items())


def _tensors(
    model: fx.GraphModule, paths: list[str]
) -> tuple[tuple[TensorRecord, ...], dict[str, Tensor]]:
    """Return the records of all tensors of the network, and their values by key."""
    records: dict[str, TensorRecord] = {}
    keys: dict[int, str] = {}
    values: dict[str, Tensor] = {}
    for path in paths:
        held = operator.attrgetter(path)(model)
        named = {path: held} if isinstance(held, Tensor) else _named_tensors(path, held)
        for name, value in named.items():
            key = keys.setdefault(id(value), name)
            order = _memory_order(value.stride())
            values.setdefault(key, _in_order(value, order))
            parameter = isinstance(value, nn.Parameter)
            records[name] = TensorRecord(name, key, parameter, value.requires_grad, tuple(order))
    return tuple(records.values()), values


def _memory_order(strides: tuple[int, ...]) -> list[int]:
    """Return the dimensions from the outermost in memory to the innermost."""
    return sorted(range(len(strides)), key=lambda dimension: -strides[dimension])


def _in_order(value: Tensor, order: list[int]) -> Tensor:
    """Return a copy whose dimensions are in the order of its memory."""
    return value.detach().cpu().permute(order).clone(memory_format=torch.contiguous_format)


def _named_tensors(path: str, layer: nn.Module) -> dict[str, Tensor]:
    named = (
        *layer.named_parameters(path, remove_duplicate=False),
        *layer.named_buffers(path, remove_duplicate=False),
    )
    return dict(named)


def _nodes(graph: fx.Graph) -> tuple[NodeRecord, ...]:
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    return tuple(_node(node, numbers) for node in graph.nodes)


def _node(node: fx.Node, numbers: dict[fx.Node, int]) -> NodeRecord:
    target = _target(node)
    try:
        args = tuple(encode(value, numbers) for value in node.args)
        kwargs = tuple((name, encode(value, numbers)) for name, value in node.kwargs.items())
    except EsperError as error:
        raise EsperError(f"{target} is called with {error}") from error
    return NodeRecord(node.op, target, args, kwargs)  # type: ignore[arg-type]


def _target(node: fx.Node) -> str:
    if node.op != "call_function":
        return str(node.target)
    assert callable(node.target)
    name = FUNCTION_NAMES.get(node.target)
    if name is None:
        called = getattr(node.target, "__qualname__", repr(node.target))
        owner = getattr(node.target, "__module__", None) or "torch"
        raise EsperError(f"it calls {owner}.{called}")
    return name


def same_outputs(one: Any, other: Any) -> bool:
    """Whether two outputs are equal bit for bit."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return False
    same_kind = one.shape == other.shape and one.dtype == other.dtype
    return same_kind and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
