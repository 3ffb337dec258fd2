"""Places in a traced model where a seed can be inserted, and the choice among them.

A place is legal where one tensor is alive that depends on the data, and its layout is one that
blueprints know.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from esper.kasmina.layers.host_checks import LAYOUTS
from esper.kasmina.tracing.graph import ModelGraph
from esper.kasmina.tracing.module_stacks import owner_path
from esper.kasmina.tracing.tracer import BATCHES, FLAG, Level, is_accessor
from esper.leyline.errors import EsperError, shown
from esper.leyline.slots import InjectionSpec, Topology, slot_id

BLOCK, STEP, LAYER, OTHER = 3, 2, 1, 0
"""Grades of a place: end of a block or stage; after an activation, a pool or a skip; after another
layer; anywhere else."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A tensor that a seed may be added to."""

    index: int
    """Position in the order of execution."""
    topology: Topology
    channels: int
    interval: int
    """Number of layers with parameters before it."""
    paths: tuple[str, ...]
    """Modules that return it, inner ones first."""
    grade: int
    label: str
    shape: tuple[int, ...]
    """Of one sample."""


@dataclass(frozen=True, slots=True, eq=False)
class NodePlace(Place):
    """A place in a traced model; `index` is where its tensor becomes the only one alive."""

    node: fx.Node
    channels_last: bool
    """Whether the tensor is `[B, H, W, C]`: seeds get it as `[B, C, H, W]`."""


P = TypeVar("P", bound=Place)


def find_places(model: ModelGraph) -> list[NodePlace]:
    """Return all legal places in order of execution."""
    nodes = [node for node in model.graph.nodes if node.op != "output"]
    order = {node: index for index, node in enumerate(nodes)}
    layers = [index for index, node in enumerate(nodes) if _has_parameters(model.root, node)]
    last_use = {node: _last_use(node, order) for node in nodes}
    places: list[NodePlace] = []
    alive: list[fx.Node] = []
    seen: set[fx.Node] = set()
    for index, node in enumerate(nodes):
        if node.meta["level"] == Level.DATA:
            alive.append(node)
        alive = [n for n in alive if last_use[n] > index]
        if len(alive) != 1 or alive[0] in seen:
            continue
        live = alive[0]
        seen.add(live)
        before = sum(layer <= index for layer in layers)
        if not 0 < before < len(layers):
            continue
        small, large = live.meta["values"]
        layout = layout_of_values(small, large, partial(_channels_last, model.root, live))
        if layout is None:
            continue
        topology, channels, last = layout
        paths = _paths(model, live)
        label = _label(model, live, paths)
        times = sum(place.label.partition(" (")[0] == label for place in places)
        label, grade = f"{label} ({times + 1})" if times else label, _grade(model, live)
        shape = tuple(small.shape[1:])
        places.append(
            NodePlace(index, topology, channels, before, paths, grade, label, shape, live, last)
        )
    return places


# ---- legality -----------------------------------------------------------------------------


def _last_use(node: fx.Node, order: dict[fx.Node, int]) -> int:
    """Return where the values of a node are last read; reading its size does not count."""
    return max(
        (order.get(user, len(order)) for user in node.users if not is_accessor(user)), default=-1
    )


def _is_data(node: fx.Node) -> bool:
    return node.op == "output" or node.meta["level"] == Level.DATA


def _has_parameters(root: nn.Module, node: fx.Node) -> bool:
    """Whether a node on the path of the data computes with parameters, of its own or given."""
    if node.meta["level"] != Level.DATA:
        return False
    if node.op == "call_module":
        module = root.get_submodule(str(node.target))
        if any(True for _ in module.parameters()):
            return True
    return any(_derives_from_parameter(n) for n in node.all_input_nodes)


def _derives_from_parameter(node: fx.Node) -> bool:
    if node.meta["level"] != Level.STATE:
        return False
    if node.op == "get_attr":
        return isinstance(node.meta["values"][0], nn.Parameter)
    return node.op == "call_module" or any(map(_derives_from_parameter, node.all_input_nodes))


def layout_of_values(
    small: object, large: object, channels_last: Callable[[], bool | None]
) -> tuple[Topology, int, bool] | None:
    """Return topology and channels of an activation, and whether it is an image with channels last;
    None if seeds do not know its layout.

    Given are its values on both batches, and what may tell where its channels are.
    """
    if not isinstance(small, Tensor) or not isinstance(large, Tensor):
        return None
    if small.dtype != torch.float32 or small.ndim not in (2, 3, 4) or not all(small.shape):
        return None
    if (len(small), len(large)) != BATCHES or small.shape[1:] != large.shape[1:]:
        return None
    if small.ndim == 2:
        return "mlp", small.shape[1], False
    last = channels_last()
    if small.ndim == 4:
        return "cnn", small.shape[-1 if last else 1], bool(last)
    topology: Topology = "signal" if last is False else "transformer"
    return topology, small.shape[LAYOUTS[topology].index("C")], False


# ---- which axis the channels are ----------------------------------------------------------

_FIRST_LAYERS: Final = (
    _ConvNd, _BatchNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.GroupNorm, nn.MaxPool1d,
    nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.Upsample, nn.PixelShuffle,
)  # fmt: skip
_LAST_LAYERS: Final = (
    nn.LayerNorm, nn.RMSNorm, nn.Linear, nn.MultiheadAttention, nn.TransformerEncoderLayer,
    nn.Embedding, nn.LSTM, nn.GRU, nn.RNN,
)  # fmt: skip
_FIRST_FUNCTIONS: Final = ("conv", "batch_norm", "group_norm", "max_pool", "avg_pool", "adaptive",
                           "interpolate", "instance_norm")  # fmt: skip
"""How their names begin."""
_LAST_FUNCTIONS: Final = ("linear", "layer_norm", "rms_norm", "embedding", "scaled_dot_product")
_FLIPS: Final = frozenset({"transpose", "permute", "swapaxes", "movedim", "moveaxis"})
_MAX_STEPS: Final = 12
"""How far to look for a layer that implies the layout."""


def _channels_last(root: nn.Module, node: fx.Node) -> bool | None:
    """Whether layers near a tensor take it for one with channels last; None: none of them tells."""
    after = _nearest(root, node, forward=True)
    return _nearest(root, node, forward=False) if after is None else after


def _nearest(root: nn.Module, start: fx.Node, forward: bool) -> bool | None:
    """Whether channels are last for the nearest layer after or before a tensor."""
    rank = start.meta["values"][0].ndim
    frontier, seen = [(start, False)], {start}
    for _ in range(_MAX_STEPS):
        following: list[tuple[fx.Node, bool]] = []
        for node, flipped in frontier:
            looked_at = node is not start or not forward
            last = _has_last(root, node) if looked_at else None
            if last is not None:
                return last != flipped
            turned = flipped != (looked_at and _name(node) in _FLIPS)
            if not forward or not looked_at or _rank(node) == rank:
                near = list(node.users) if forward else node.all_input_nodes
                following += [
                    (n, turned) for n in near if n not in seen and _tells(n, forward, rank)
                ]
                seen.update(near)
        frontier = following
    return None


def _tells(node: fx.Node, forward: bool, rank: int) -> bool:
    if not _is_data(node) or node.op in ("output", "placeholder"):
        return False
    return forward or _rank(node) == rank


def _rank(node: fx.Node) -> int:
    value = node.meta["values"][0]
    return value.ndim if isinstance(value, Tensor) else -1


def has_channels_last(module: nn.Module) -> bool | None:
    """Whether a layer has its channels last; None if that does not matter to it."""
    for part in module.modules():
        if isinstance(part, _FIRST_LAYERS):
            return False
        if isinstance(part, nn.LayerNorm) and len(part.normalized_shape) > 1:
            continue
        if isinstance(part, _LAST_LAYERS):
            return True
    return None


def _has_last(root: nn.Module, node: fx.Node) -> bool | None:
    if node.op == "call_module":
        return has_channels_last(root.get_submodule(str(node.target)))
    if _name(node).startswith(_FIRST_FUNCTIONS):
        return False
    return True if _name(node).startswith(_LAST_FUNCTIONS) else None


def _name(node: fx.Node) -> str:
    """Return the name of the function or method a node calls."""
    if node.op == "call_function":
        return str(getattr(node.target, "__name__", node.target))
    return str(node.target) if node.op == "call_method" else ""


# ---- grades and names ---------------------------------------------------------------------

_STEPS: Final = ("torch.nn.modules.activation", "torch.nn.modules.pooling")
_ACTIVATIONS: Final = frozenset(
    {"relu", "relu6", "gelu", "silu", "elu", "selu", "mish", "hardswish", "leaky_relu", "prelu",
     "tanh", "sigmoid", "hardtanh", "softplus"}
)  # fmt: skip
_ADDS: Final = frozenset({"add", "add_", "iadd", "cat", "concat"})


def _grade(model: ModelGraph, node: fx.Node) -> int:
    name, paths = _name(node), _paths(model, node)
    if name in _ADDS and not paths:
        data = [n for n in node.all_input_nodes if _is_data(n)]
        return STEP if len(data) > 1 else OTHER
    if model.ends.get(node):
        grade = BLOCK
    elif node.op == "call_module":
        grade = grade_of_layer(model.root.get_submodule(str(node.target)))
    else:
        grade = STEP if name.rstrip("_") in _ACTIVATIONS or "pool" in name else OTHER
    owner = paths[-1].rpartition(".")[0] if paths else owner_path(node)
    return LAYER if grade > LAYER and in_repeated(model.root, owner) else grade


def grade_of_layer(module: nn.Module) -> int:
    """Return the grade of the place after a module that is one step of a graph."""
    own = type(module).__module__
    if not own.startswith("torch.nn.") or isinstance(module, nn.TransformerEncoderLayer):
        return BLOCK
    if own in _STEPS and not isinstance(module, nn.MultiheadAttention):
        return STEP
    first_of_more = isinstance(module, (_ConvNd, nn.Linear, _BatchNorm, nn.GroupNorm))
    return OTHER if first_of_more else LAYER


def in_repeated(root: nn.Module, owner: str) -> bool:
    """Whether a module, or one it is in, is a block that its parent has several of."""
    while owner:
        above = owner.rpartition(".")[0]
        kind = type(root.get_submodule(owner))
        siblings = root.get_submodule(above).children()
        if kind is not nn.Sequential and sum(type(child) is kind for child in siblings) > 1:
            return True
        owner = above
    return False


def _paths(model: ModelGraph, node: fx.Node) -> tuple[str, ...]:
    leaf = (str(node.target),) if node.op == "call_module" else ()
    return tuple(dict.fromkeys((*leaf, *model.ends.get(node, ()))))


def _label(model: ModelGraph, node: fx.Node, paths: Sequence[str]) -> str:
    if paths:
        return f"after {paths[-1]}"
    if owner := owner_path(node):
        return f"after {_name(node)} in {owner}"
    previous = node.prev
    while previous.op != "root" and not _is_named_layer(model, previous):
        previous = previous.prev
    behind = f" behind {previous.target}" if previous.op == "call_module" else ""
    return f"after {_name(node)}{behind}"


def _is_named_layer(model: ModelGraph, node: fx.Node) -> bool:
    """Whether a node calls a module of the user's, not one that the trace added."""
    if node.op != "call_module" or str(node.target) in model.additions.modules:
        return False
    return str(node.target).rpartition(".")[2] != FLAG


# ---- choice -------------------------------------------------------------------------------


def choose_places(places: Sequence[P], slots: int) -> list[P]:
    """Return up to `slots` places of one topology, spread over the depth."""
    for least in (STEP, LAYER, OTHER):
        best: list[P] = []
        for topology in ("cnn", "signal", "transformer", "mlp"):  # ties: the trunk before the head
            found = _one_per_interval([p for p in places if p.topology == topology], least)
            if len(found) > len(best):
                best = found
        if best:
            break
    chosen = _spread([place for place in best if place.grade == BLOCK], slots)
    chosen += _spread([place for place in best if place.grade < BLOCK], slots - len(chosen))
    return sorted(chosen, key=lambda place: place.index)


def _one_per_interval(places: Sequence[P], least: int) -> list[P]:
    """Between two layers with parameters take the best place, of equal ones the last."""
    best: dict[int, P] = {}
    for place in places:
        rival = best.get(place.interval)
        if place.grade >= least and (rival is None or place.grade >= rival.grade):
            best[place.interval] = place
    return list(best.values())


def _spread(places: Sequence[P], most: int) -> list[P]:
    """Return up to `most` places in even steps, ends of stages among them."""
    shapes = [*(place.shape for place in places), ()]
    ends = [rank for rank in range(len(places)) if shapes[rank] != shapes[rank + 1]]
    if len(ends) >= most:
        return [places[ends[rank]] for rank in _even_ranks(len(ends), most)]
    ranks = _even_ranks(len(places), most)
    for end in ends:  # moves the nearest one there
        free = [rank for rank in ranks if rank not in ends]
        if end not in ranks and free:
            ranks[ranks.index(min(free, key=lambda rank: abs(rank - end)))] = end
    return [places[rank] for rank in sorted(ranks)]


def _even_ranks(count: int, most: int) -> list[int]:
    """Return up to `most` of `count` ranks in even steps, the last one included."""
    if count <= most:
        return list(range(count))
    return [(step + 1) * count // most - 1 for step in range(most)]


def named_places(places: Sequence[P], names: Sequence[str], root: nn.Module) -> list[P]:
    """Return the places behind the named modules; raises with the nearest legal ones."""
    found = [_named(places, name, root) for name in names]
    return together(found, names)


def together(found: Sequence[P], names: Sequence[str]) -> list[P]:
    """Return places in order of execution; raises unless they differ and have one layout."""
    kinds = {place.topology: name for place, name in zip(found, names, strict=True)}
    if len(kinds) > 1:
        listed = ", ".join(f"{name!r} is {kind}" for kind, name in kinds.items())
        raise EsperError(f"slots of different layouts ({listed}): name places of one layout")
    if len({place.index for place in found}) < len(found):
        raise EsperError(f"slots {', '.join(names)}: two of them name one place")
    return sorted(found, key=lambda place: place.index)


def _named(places: Sequence[P], name: str, root: nn.Module) -> P:
    wanted = name.removeprefix("after ") if isinstance(name, str) else name
    found = [p for p in places if wanted in p.paths or p.label == f"after {wanted}"]
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        raise EsperError(f"slots: {name!r} runs {len(found)} times; name a module that runs once")
    legal = list(dict.fromkeys(place.label.removeprefix("after ") for place in places))
    known = wanted in dict(root.named_modules())
    problem = "more than one tensor is alive behind it, or its layout fits no seed"
    reason = problem if known else "there is no module of that name"
    raise no_place(name, str(wanted), reason, legal)


_NEAR: Final = 4
"""Legal names to show, at most."""


def no_place(name: object, path: str, reason: str, legal: Sequence[str]) -> EsperError:
    """Return the error of a slot that cannot be, with the legal names closest to it: those under or
    above it, then those like it.
    """
    related = [n for n in legal if n.startswith(f"{path}.") or path.startswith(f"{n}.")]
    alike = difflib.get_close_matches(path, legal, n=_NEAR, cutoff=0.0)
    near = ", ".join(list(dict.fromkeys([*related, *alike]))[:_NEAR]) or "none"
    return EsperError(
        f"slots: {shown(name)} is no place for a seed, {reason}; legal near it: {near}"
    )


def slot_specs(places: Sequence[Place]) -> tuple[InjectionSpec, ...]:
    """Return the slots at places, in a row."""
    return tuple(
        InjectionSpec(slot_id(0, col), place.channels, col, place.label)
        for col, place in enumerate(places)
    )
