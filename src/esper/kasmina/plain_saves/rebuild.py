"""A network from its description, which may come from a stranger.

Layers are built without values, so that sizes cost nothing before they are compared with those of
the tensors in the file. torch.fx writes the forward function as Python: names that get there are
identifiers, looked up in our tables (`vocabulary.py`) or quoted.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from torch import Tensor, fx, nn

from esper.kasmina.plain.plain_graph import set_tracer
from esper.kasmina.plain_saves.layers import build_layer
from esper.kasmina.plain_saves.records import (
    Arguments,
    GraphRecord,
    LayerRecord,
    NodeRecord,
    TensorRecord,
)
from esper.kasmina.plain_saves.values import decode
from esper.kasmina.plain_saves.vocabulary import ATTRIBUTES, FUNCTIONS, METHODS
from esper.leyline.errors import EsperError, parse_error_line, shown, unknown_name

_PART: Final = re.compile(r"[A-Za-z0-9_]+", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def rebuild(record: GraphRecord, values: Mapping[str, Tensor], where: str) -> fx.GraphModule:
    """Return the network, in eval mode; raises in one line if the description is not one."""
    try:
        return _rebuild(record, values)
    except EsperError as error:
        raise EsperError(f"{where}: {error}") from error
    except Exception as error:  # torch's checks of what ours let through
        raise EsperError(f"{where}: no network ({parse_error_line(ValueError(error))})") from error


def _rebuild(record: GraphRecord, values: Mapping[str, Tensor]) -> fx.GraphModule:
    root = nn.Module()
    for layer in record.layers:
        _install_layer(root, layer, len(values))
    _install_tensors(root, record.tensors, values)
    empty = [n for n, t in (*root.named_parameters(), *root.named_buffers()) if t.is_meta]
    if empty:
        raise EsperError(f"{empty[0]} has no values")
    layers = {layer.path for layer in record.layers}
    tensors = {tensor.path for tensor in record.tensors}
    graph = _graph(record.nodes, layers, tensors)
    graph.lint()
    set_tracer(graph)
    model = fx.GraphModule(root, graph, _identifier(record.name))
    model.meta["untraced"] = ()
    return model.eval()


# ---- layers and tensors -------------------------------------------------------------------


def _install_layer(root: nn.Module, record: LayerRecord, tensors: int) -> None:
    owner, name = _owner(root, record.path)
    if name in owner._modules:
        raise EsperError(f"{record.path}: two layers of this name")
    arguments = {_identifier(n): decode(value, ()) for n, value in _unique(record.arguments)}
    try:
        owner.add_module(name, build_layer(record.kind, arguments, tensors))
    except EsperError as error:
        raise EsperError(f"{record.path}: {error}") from error


def _owner(root: nn.Module, path: str) -> tuple[nn.Module, str]:
    """Return the module that holds what is at a path, made if it is missing, and the last name."""
    *above, name = path.split(".")
    if not all(_PART.fullmatch(part) for part in (*above, name)):
        raise EsperError(f"{shown(path)} is no path of a module")
    for part in above:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        inner = root._modules[part]
        assert inner is not None
        root = inner
    return root, name


def _install_tensors(
    root: nn.Module, records: Sequence[TensorRecord], values: Mapping[str, Tensor]
) -> None:
    made: dict[str, Tensor] = {}
    for record in records:
        if record.key not in values:
            raise EsperError(f"{record.path}: no tensor {shown(record.key)}")
        if record.key not in made:
            made[record.key] = _tensor(record, values[record.key])
        _install_tensor(root, record, made[record.key])
    unused = set(values) - set(made)
    if unused:
        raise EsperError(f"no place for the tensor {shown(min(unused))}")


def _tensor(record: TensorRecord, value: Tensor) -> Tensor:
    if sorted(record.order) != list(range(value.ndim)):
        raise EsperError(f"{record.path}: {shown(record.order)} is no order of dimensions")
    inverse = sorted(range(value.ndim), key=lambda d: record.order[d])
    placed = value.permute(inverse)
    return nn.Parameter(placed, record.requires_grad) if record.parameter else placed


def _install_tensor(root: nn.Module, record: TensorRecord, value: Tensor) -> None:
    owner, name = _owner(root, record.path)
    if isinstance(value, nn.Parameter) is not record.parameter:
        raise EsperError(f"{record.path} shares {record.key}, which is of another kind")
    known = owner._parameters if record.parameter else owner._buffers
    place = known.get(name)
    if place is None and record.parameter:
        owner.register_parameter(name, value)  # type: ignore[arg-type]
    elif place is None:
        owner.register_buffer(name, value)
    elif place.shape != value.shape:
        raise EsperError(
            f"{record.path} has shape {tuple(value.shape)}, its layer {tuple(place.shape)}"
        )
    else:
        setattr(owner, name, value)  # recurrent layers keep lists of their weights up to date


# ---- the graph ----------------------------------------------------------------------------


def _graph(records: Sequence[NodeRecord], layers: set[str], tensors: set[str]) -> fx.Graph:
    if [r.op for r in records].count("output") != 1 or records[-1].op != "output":
        raise EsperError("a network has one output, at the end")
    graph = fx.Graph()
    nodes: list[fx.Node] = []
    for number, record in enumerate(records):
        try:
            target = _target(record, layers, tensors)
            args = tuple(decode(value, nodes) for value in record.args)
            kwargs = {_identifier(n): decode(v, nodes) for n, v in _unique(record.kwargs)}
            _check_getattr(target, args, kwargs)
        except EsperError as error:
            raise EsperError(f"call {number}: {error}") from error
        nodes.append(graph.create_node(record.op, target, args, kwargs))
    return graph


def _target(record: NodeRecord, layers: set[str], tensors: set[str]) -> Any:
    name = record.target
    if record.op in ("placeholder", "output"):
        return _identifier(name)
    if record.op == "call_function":
        if name not in FUNCTIONS:
            raise unknown_name("function", name, FUNCTIONS)
        return FUNCTIONS[name]
    known = {"call_method": METHODS, "call_module": layers, "get_attr": tensors}[record.op]
    if name not in known:
        raise unknown_name("target", name, sorted(known), f"of {record.op}")
    return name


def _check_getattr(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise unless a `getattr` reads one of the attributes that are known."""
    if target is not getattr:
        return
    if kwargs or len(args) != 2 or not isinstance(args[1], str) or args[1] not in ATTRIBUTES:
        raise EsperError(f"getattr of {shown(args[1:])}")


def _identifier(name: str) -> str:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name == "self":
        raise EsperError(f"{shown(name)} is no name of an argument")
    return name


def _unique(arguments: Arguments) -> Arguments:
    if len({name for name, _ in arguments}) < len(arguments):
        raise EsperError("an argument is given twice")
    return arguments
