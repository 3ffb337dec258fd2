"""The description of a network as records: layers, tensors, and a list of calls.

Arguments are JSON: numbers, text, true, false and null are themselves, and everything else is a
list that begins with its kind (`values.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from esper.storage.manifest import FileRecord

Op = Literal["placeholder", "get_attr", "call_module", "call_function", "call_method", "output"]
Arguments = tuple[tuple[str, object], ...]
"""Arguments by name."""


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """A layer of torch's."""

    path: str
    kind: str
    """Name in `torch.nn`."""
    arguments: Arguments
    """Of its constructor."""


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A parameter or buffer."""

    path: str
    key: str
    """Name in the file of tensors; tied parameters share one."""
    parameter: bool
    requires_grad: bool
    order: tuple[int, ...]
    """Its dimensions from the outermost in memory to the innermost."""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A call, or an input or the output; arguments refer to earlier nodes by number."""

    op: Op
    target: str
    args: tuple[object, ...]
    kwargs: Arguments


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """A network without the values of its tensors."""

    name: str
    layers: tuple[LayerRecord, ...]
    tensors: tuple[TensorRecord, ...]
    nodes: tuple[NodeRecord, ...]


@dataclass(frozen=True, slots=True)
class PlainContent:
    """A network in a folder: its graph, or why it has none."""

    inputs: Literal["tensor", "tuple", "dict"]
    """How it is called."""
    names: tuple[str, ...]
    """Of the inputs in a dict."""
    graph: GraphRecord | None
    reason: str
    """Why the network has no description."""
    program: FileRecord | None
    """Its `.pt2` file, which a network without a description has if torch can export it."""
