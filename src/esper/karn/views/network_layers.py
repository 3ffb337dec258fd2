"""The layers of a network in order, from the description in its folder, which is read as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from esper.karn.views.damage import UNREADABLE
from esper.karn.views.documents import Entries, entries, listed, objects, read_entries, text
from esper.leyline.codec import Json
from esper.storage import run_files as f

MAX_LAYERS: Final = 120
"""Layers that are drawn; the rest of a deeper network is left out."""
_WIDTHS: Final = (
    ("in_channels", "out_channels"), ("in_features", "out_features"),
    ("num_embeddings", "embedding_dim"), ("input_size", "hidden_size"),
    ("d_model", "d_model"), ("embed_dim", "embed_dim"), ("num_features", "num_features"),
    ("num_channels", "num_channels"),
)  # fmt: skip
"""Arguments of layers that are the widths of their inputs and outputs."""
_SKIPPED: Final = ("getattr", "getitem", "size", "dim", "contiguous", "to")
"""Calls that compute nothing."""


@dataclass(frozen=True, slots=True)
class LayerBox:
    """A layer or an operation of a network."""

    name: str
    """`Conv2d`, `add`."""
    path: str
    """Of a layer in the network, as `features.0`; empty for an operation."""
    inputs: int
    """Width of what comes in; 0: it keeps the width."""
    outputs: int
    note: str
    """What else matters, as in `3x3, stride 2`."""


def read_layers(run: Path, number: int) -> tuple[LayerBox, ...]:
    """Layers of a network in the order of their calls; empty where it has no description."""
    path = run / f.GROWN_NETWORKS / f"{number:04d}-plain" / "manifest.json"
    try:
        graph = entries(entries(read_entries(path), "content"), "graph")
    except UNREADABLE:  # it is not there yet, or damaged: its file is listed all the same
        return ()
    layers = {text(one, "path"): one for one in objects(graph, "layers")}
    found = (box for node in objects(graph, "nodes") for box in _boxes(node, layers))
    return tuple(box for box, _ in zip(found, range(MAX_LAYERS), strict=False))


def _boxes(node: Entries, layers: dict[str, Entries]) -> Iterator[LayerBox]:
    op, target = text(node, "op"), text(node, "target")
    if op == "call_module" and target in layers:
        yield _layer(layers[target])
    elif op in ("call_function", "call_method"):
        name = target.rpartition(".")[2].strip("_")
        if name not in _SKIPPED:
            yield LayerBox(name, "", 0, 0, "")


def _layer(layer: Entries) -> LayerBox:
    arguments = {
        pair[0]: pair[1]
        for pair in listed(layer, "arguments")
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)
    }
    before, after = next(
        (pair for pair in _WIDTHS if all(_is_count(arguments.get(name)) for name in pair)), ("", "")
    )
    inputs, outputs = _count(arguments.get(before)), _count(arguments.get(after))
    return LayerBox(text(layer, "kind"), text(layer, "path"), inputs, outputs, _note(arguments))


def _note(arguments: dict[str, Json]) -> str:
    groups, channels = _count(arguments.get("groups")), _count(arguments.get("in_channels"))
    stride, dropped = _size(arguments.get("stride")), arguments.get("p")
    heads = _count(arguments.get("num_heads")) or _count(arguments.get("nhead"))
    kernel = _size(arguments.get("kernel_size"))
    parts = [
        kernel,
        f"stride {stride}" if stride and stride not in ("1", "1x1", kernel) else "",
        "depthwise" if groups == channels > 1 else f"{groups} groups" if groups > 1 else "",
        f"{heads} heads" if heads else "",
        f"{dropped:.2g} dropped" if isinstance(dropped, float) else "",
    ]
    return ", ".join(part for part in parts if part)


def _is_count(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _count(value: Json) -> int:
    return value if isinstance(value, int) and _is_count(value) else 0


def _size(value: Json) -> str:
    """A size as `3x3`; tuples are lists that begin with their kind."""
    if isinstance(value, list):
        return "x".join(str(one) for one in value if _is_count(one))
    return str(value) if _is_count(value) else ""
