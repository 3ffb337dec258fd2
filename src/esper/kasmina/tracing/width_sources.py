"""Which layer chooses the width of which tensor, and which widths belong to the data.

One forward pass of the user's model on the example, with every torch function watched. A tensor's
sources are the layers (or bare parameters) whose output width it has. Sources that meet in an
elementwise operation must keep equal widths, so a width tied to a raw input or to the model's
output is fixed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from esper.kasmina.tracing.inputs import Inputs
from esper.kasmina.tracing.resizing import (
    GENERATORS,
    RESIZABLE,
    is_depthwise,
    is_frozen,
    output_width,
)
from esper.kasmina.tracing.tracer import pick_output

Sources = frozenset[str]
INPUT: Final = "<input>"
OUTPUT: Final = "<output>"
EXTRA: Final = "<extra>"
"""Outputs that are not trained on."""
FROZEN: Final = "<frozen>"
POSITIONS: Final = "<positions>"
"""Layers over an axis of positions, which the data give."""
_NONE: Final[Sources] = frozenset()
_TIES: Final = frozenset(
    {"add", "iadd", "radd", "sub", "isub", "rsub", "mul", "imul", "rmul", "div", "truediv",
     "rtruediv", "itruediv", "maximum", "minimum", "where", "lerp", "addcmul", "addcdiv", "pow",
     "layer_norm", "rms_norm", "batch_norm", "group_norm", "instance_norm", "prelu"}
)  # fmt: skip
"""Operations whose operands have one width."""
_WEIGHTED: Final = ("linear", "conv", "embedding", "matmul", "rmatmul", "bmm", "mm", "baddbmm")
_REDUCTIONS: Final = frozenset({"sum", "mean", "amax", "amin", "prod", "norm", "logsumexp"})
_LAST: Final = frozenset({"matmul", "bmm", "mm", "scaled_dot_product_attention"})
"""Operations whose last operand gives the width."""


@dataclass(slots=True, eq=False)
class WidthSources:
    """What one forward pass shows."""

    layers: dict[str, nn.Module] = field(default_factory=dict)
    """Layers with sizes that were called, by path."""
    tensors: dict[str, bool] = field(default_factory=dict)
    """Tensors outside of these that were read -> whether as a weight matrix."""
    matrix_widths: dict[str, int] = field(default_factory=dict)
    """Bare weight matrices -> width of what they compute."""
    divided: set[tuple[int, int]] = field(default_factory=set)
    """Widths and numbers that must divide them, for layers without weights."""
    shape: tuple[int, ...] = ()
    """Of the output that is trained on."""
    _parent: dict[str, str] = field(default_factory=dict)

    def tie(self, sources: Iterable[str]) -> None:
        """Note that sources have one width."""
        first, *others = [self._root(source) for source in sources] or [""]
        for other in others:
            self._parent[other] = first

    def _root(self, source: str) -> str:
        while (above := self._parent.get(source, source)) != source:
            source = above
        return source

    def fixed(self, anchors: Sequence[str]) -> set[str]:
        """Return layers and tensors whose width is tied to one of the anchors."""
        roots = {self._root(anchor) for anchor in anchors}
        return {name for name in (*self.layers, *self.tensors) if self._root(name) in roots}

    def tied_widths(self, name: str) -> set[int]:
        """Return the widths of the layers that a tensor is tied to."""
        root = self._root(name)
        return {
            output_width(layer)
            for path, layer in self.layers.items()
            if isinstance(layer, GENERATORS) and self._root(path) == root
        }

    def widths(self, fixed: set[str]) -> list[int]:
        """Return the widths that inner layers choose, in order of execution."""
        found = [
            output_width(layer)
            for path, layer in self.layers.items()
            if isinstance(layer, GENERATORS) and not is_depthwise(layer) and path not in fixed
        ]
        found += [width for name, width in self.matrix_widths.items() if name not in fixed]
        return [width for width in found if width > 1]


def find_sources(
    model: nn.Module, inputs: Inputs, values: Sequence[Tensor], output: str | int | None
) -> WidthSources:
    """Run a copy of the user's model, in eval mode, and see who chooses the widths."""
    found = WidthSources()
    watch = _Watch(model, found)
    for value in values:
        watch.mark(value, frozenset({INPUT}))
    handles = [
        layer.register_forward_hook(watch.layer_hook(path, layer), with_kwargs=True)
        for path, layer in model.named_modules()
        if isinstance(layer, (*RESIZABLE, nn.PixelShuffle))
    ]
    try:
        with torch.no_grad(), watch:
            out = inputs.call(model, values)
    finally:
        for handle in handles:
            handle.remove()
    picked = pick_output(out, output)
    found.shape = tuple(picked.shape)
    for tensor in tensors_in(out):
        is_picked = tensor is picked
        found.tie((OUTPUT if is_picked else EXTRA, *watch.sources(tensor)))
    return found


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested tuples, lists, dicts and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif dataclasses.is_dataclass(value):
        yield from tensors_in([getattr(value, part.name) for part in dataclasses.fields(value)])


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters, buffers and tensors that are plain attributes, by path."""
    found: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        for names in (module._parameters, module._buffers, module.__dict__):
            for name, value in names.items():
                if isinstance(value, Tensor):
                    found[f"{path}.{name}" if path else name] = value
    return found


class _Watch(TorchFunctionMode):
    """Follows sources through every torch function."""

    def __init__(self, model: nn.Module, found: WidthSources) -> None:
        super().__init__()
        self._found = found
        self._kept: list[Tensor] = []  # an id is only unique while its tensor lives
        self._sources: dict[int, Sources] = {}
        self._origins: dict[int, str] = {}
        self._names = {id(tensor): name for name, tensor in named_tensors(model).items()}
        self._owners = {
            id(p): path
            for path, layer in model.named_modules()
            if isinstance(layer, RESIZABLE)
            for p in (*layer.parameters(), *layer.buffers())
        }

    def mark(self, tensor: Tensor, sources: Sources) -> None:
        self._kept.append(tensor)
        self._sources[id(tensor)] = sources

    def sources(self, tensor: Tensor) -> Sources:
        key = id(tensor)
        if key in self._sources or key not in self._names:
            return self._sources.get(key, _NONE)
        if key in self._owners:
            return frozenset({self._owners[key]})
        name = self._names[key]
        self._found.tensors.setdefault(name, False)
        return frozenset({name})

    def layer_hook(self, path: str, layer: nn.Module) -> Callable[..., None]:
        """Return a hook that sets the sources of a layer's output."""

        def hook(_: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
            given = list(tensors_in([args, kwargs]))
            if isinstance(layer, nn.PixelShuffle):
                widths = {self._width(source) for source in self.sources(given[0])} - {None}
                self._found.divided |= {(w, layer.upscale_factor**2) for w in widths if w}
                return
            self._found.layers.setdefault(path, layer)
            own = frozenset({path})
            if is_frozen(layer):
                self._found.tie((FROZEN, *own, *(s for g in given for s in self.sources(g))))
            if not isinstance(layer, GENERATORS) or is_depthwise(layer):
                own = self.sources(given[0])
            elif output_width(layer) == 1:
                own = _NONE
            for tensor in tensors_in(out):
                self.mark(tensor, own)

        return hook

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        produced = list(tensors_in(out))
        name = str(getattr(func, "__name__", "")).strip("_")
        if produced:
            given = list(tensors_in([args, kwargs]))
            sources = self._passed(name, given, produced[0])
            for tensor in produced:
                self.mark(tensor, sources)
        return out

    def _passed(self, name: str, given: list[Tensor], out: Tensor) -> Sources:
        """Return the sources of an operation's result; note what it ties."""
        if not given:
            return _NONE
        if name in _LAST or (name.startswith(_WEIGHTED) and len(given) > 1):
            return self._from_weight(name, given, out)
        every = [self.sources(tensor) for tensor in given]
        if name in _TIES:
            self._tie(given, every)
        joined: Sources = _NONE.union(*every)
        if len(given) == 1 and (origin := self._origin(given[0])):
            self._origins[id(out)] = origin
        if name in _REDUCTIONS and joined:
            joined = frozenset(s for s in joined if not self._reduced(s, given[0], out))
        return joined

    def _origin(self, tensor: Tensor) -> str:
        """Return the name of the parameter or buffer that a tensor is a view of."""
        return self._origins.get(id(tensor)) or self._names.get(id(tensor), "")

    def _from_weight(self, name: str, given: list[Tensor], out: Tensor) -> Sources:
        weight = given[2 if name.startswith("scaled") else -1 if name in _LAST else 1]
        sources, origin = self.sources(weight), self._origin(weight)
        if not origin or name.startswith("conv"):
            return sources
        if origin in self._found.tensors:
            self._found.tensors[origin] = True
            self._found.matrix_widths[origin] = out.shape[-1]
        # A table of embeddings used as the output layer: its other axis is the width.
        widths = {source: self._width(source) for source in sources}
        return frozenset(s for s, width in widths.items() if width in (None, out.shape[-1]))

    def _tie(self, given: list[Tensor], every: list[Sources]) -> None:
        known = [(t, s) for t, s in zip(given, every, strict=True) if s]
        for (a, of_a), (b, of_b) in pairwise(known):
            if self._mixes_positions(a, of_a, of_b):
                continue
            raw = INPUT in of_a or INPUT in of_b
            held = id(a) in self._names or id(b) in self._names
            # A mask given as input is broadcast: its axes are no widths.
            if not raw or a.shape == b.shape or (held and a.shape[-1] == b.shape[-1]):
                self._found.tie((*of_a, *of_b))

    def _mixes_positions(self, x: Tensor, of_a: Sources, of_b: Sources) -> bool:
        """Whether the widths that meet are two axes of one shape; the later layer's is fixed."""
        a, b = ({self._width(source) for source in sources} for sources in (of_a, of_b))
        if len(a) != 1 or len(b) != 1 or a == b or None in a | b:
            return False
        if not a | b <= set(x.shape[1:]):
            return False
        order = list(self._found.layers)
        later = max((of_a, of_b), key=lambda sources: max(order.index(s) for s in sources))
        self._found.tie((POSITIONS, *later))
        return True

    def _width(self, source: str) -> int | None:
        layer = self._found.layers.get(source)
        return output_width(layer) if isinstance(layer, GENERATORS) else None

    def _reduced(self, source: str, before: Tensor, after: Tensor) -> bool:
        width = self._width(source)
        return width is not None and width in before.shape and width not in after.shape
