"""Places in a model that is not traced: outputs of modules, found by running it on an example.

Other than in a graph, any number of tensors may be alive at a place, since the model runs whole.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from esper.device.rng import forked_rng
from esper.kasmina.tracing.inputs import Inputs, Raw
from esper.kasmina.tracing.places import (
    BLOCK,
    LAYER,
    STEP,
    Place,
    choose_places,
    grade_of_layer,
    has_channels_last,
    in_repeated,
    layout_of_values,
    no_place,
    together,
)
from esper.kasmina.tracing.tracer import BATCHES, pick_output
from esper.leyline.user_errors import user_code


@dataclass(frozen=True, slots=True, eq=False)
class HookPlace(Place):
    """The output of a module that is called once; `index` is when its tensor is first returned."""

    path: str
    """Of the module, which may return the tensor of a module inside it."""
    end: int
    """When the module returns."""
    in_tuple: bool
    """Whether the module returns a tuple that begins with the activation."""


@dataclass(slots=True, eq=False)
class _Call:
    """One call of a module."""

    path: str
    module: nn.Module
    begin: int
    given: tuple[int, ...]
    """Shape of its first input."""
    end: int = -1
    out: Any = None
    probe: Tensor | None = None
    """Added to its output, to see whether that is used."""


@dataclass(slots=True, eq=False)
class _Run:
    """All calls of modules in one pass."""

    calls: list[_Call] = field(default_factory=list)
    out: Any = None

    def of(self, path: str) -> list[_Call]:
        return [call for call in self.calls if call.path == path]


def hook_places(
    model: nn.Module,
    inputs: Inputs,
    example: Raw,
    slots: int | Sequence[str],
    output: str | int | None,
) -> list[HookPlace]:
    """Return the named places, or up to `slots` of them; none if there are none to choose from."""
    small, large = (
        _record(model, inputs, inputs.batch(example, samples), output, training=False)
        for samples in BATCHES
    )
    training = _record(model, inputs, inputs.batch(example, BATCHES[1]), output, training=True)
    finder = _Finder(model, small, large, training)
    if not isinstance(slots, int):
        return together([finder.named(name) for name in slots], slots)
    found = [finder.place(path) for path, _ in model.named_modules() if path]
    legal = sorted((p for p in found if isinstance(p, HookPlace)), key=lambda p: p.end)
    return choose_places([p for p in legal if p.interval < finder.layers], slots)


def _activation_of(out: Any) -> Tensor | None:
    """Return what a module passes on: a tensor, or the one its tuple begins with."""
    if type(out) is tuple and out:
        out = out[0]
    return out if isinstance(out, Tensor) else None


def _record(
    model: nn.Module,
    inputs: Inputs,
    values: Sequence[Tensor],
    output: str | int | None,
    training: bool,
) -> _Run:
    """Run a copy and note the calls; in training mode outputs are replaced by probed ones."""
    copied, run, clock = copy.deepcopy(model).train(training), _Run(), iter(range(1 << 31))
    stack: list[_Call] = []

    def begin(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            first = next((v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)), None)
            shape = () if first is None else tuple(first.shape)
            stack.append(_Call(path, module, next(clock), shape))

        return hook

    def end(_: nn.Module, __: Any, out: Any) -> Any:
        call = stack.pop()
        call.out, call.end = out, next(clock)
        run.calls.append(call)
        h = _activation_of(out)
        if not training or h is None or not h.is_floating_point():
            return out
        call.probe = torch.zeros((), requires_grad=True)
        probed = h + call.probe
        return (probed, *out[1:]) if isinstance(out, tuple) else probed

    for path, module in copied.named_modules():
        if path:
            module.register_forward_pre_hook(begin(path), with_kwargs=True)
            module.register_forward_hook(end)
    name = type(model).__name__
    with forked_rng(0), torch.enable_grad(), user_code(f"{name} fails on the example"):
        run.out = pick_output(inputs.call(copied, [v.clone() for v in values]), output)
    return run


class _Finder:
    """Judges modules by three passes: two batch sizes in eval mode, one in training mode."""

    def __init__(self, model: nn.Module, small: _Run, large: _Run, training: _Run) -> None:
        self._model = model
        self._runs = (small, large, training)
        self._layers = [
            call.begin
            for call in large.calls
            if any(p is not None for p in call.module._parameters.values())
        ]
        self._used = _used(training)

    @property
    def layers(self) -> int:
        """Calls of modules with parameters of their own."""
        return len(self._layers)

    def named(self, name: str) -> HookPlace:
        """Return the place after the named module; raises with the reason if there is none."""
        path = name.removeprefix("after ") if isinstance(name, str) else ""
        known = path and path in dict(self._model.named_modules())
        place = self.place(path) if known else "there is no module of that name"
        if isinstance(place, HookPlace):
            return place
        paths = [path for path, _ in self._model.named_modules() if path]
        legal = [p.path for p in map(self.place, paths) if isinstance(p, HookPlace)]
        raise no_place(name, path, place, legal)

    def place(self, path: str) -> HookPlace | str:
        """Return the place after a module, or why there is none."""
        calls = [run.of(path) for run in self._runs]
        times = [len(found) for found in calls]
        if times != [1, 1, 1]:
            return _counted(times)
        small, large, training = (found[0] for found in calls)
        h, h_large = _activation_of(small.out), _activation_of(large.out)
        if h is None or h_large is None or _activation_of(training.out) is None:
            kind = type(small.out).__name__
            return f"it returns a {kind}: a tensor is needed, or a tuple that begins with one"
        if isinstance(small.out, tuple) != isinstance(training.out, tuple):
            return "it returns a tuple in one mode only"
        layout = layout_of_values(h, h_large, partial(self._channels_last, large, h_large.shape))
        if layout is None or layout[2]:  # [B, H, W, C] has no blueprints
            dtype = str(h.dtype).removeprefix("torch.")
            return f"its output {tuple(h.shape)}, {dtype}, fits no seed: 2 to 4 axes, batch first"
        before = sum(begin < large.end for begin in self._layers)
        out = self._runs[1].out
        last = before == self.layers and h_large.numel() == out.numel()
        if h_large is out or last:
            return "it is the output of the model"
        if path not in self._used or not before:
            return "the output does not depend on it" if before else "no layer comes before it"
        topology, channels, _ = layout
        in_tuple = isinstance(small.out, tuple)
        grade, shape = self._grade(path), tuple(h.shape[1:])
        same = [c for c in self._runs[1].calls if _activation_of(c.out) is h_large]
        paths, first = tuple(c.path for c in same), min(c.end for c in same)
        return HookPlace(
            first, topology, channels, before, paths, grade, f"after {path}", shape,
            path, large.end, in_tuple,
        )  # fmt: skip

    def _channels_last(self, call: _Call, shape: tuple[int, ...]) -> bool | None:
        """Whether the next layer that takes the activation has channels last, or the one before."""
        layers = [
            (c, last)
            for c in self._runs[1].calls
            if _is_layer(c.module) and (last := has_channels_last(c.module)) is not None
        ]
        after = sorted((c for c in layers if c[0].begin > call.end), key=lambda c: c[0].begin)
        before = sorted((c for c in layers if c[0].end <= call.end), key=lambda c: -c[0].end)
        seen = [(c.given, last) for c, last in after]
        seen += [(getattr(_activation_of(c.out), "shape", ()), last) for c, last in before]
        for found, last in seen:
            if found == shape:
                return last
            if found in _turned(shape):
                return not last
        return None

    def _grade(self, path: str) -> int:
        module = self._model.get_submodule(path)
        above = path.rpartition(".")[0]
        siblings = self._model.get_submodule(above).children()
        repeated = sum(type(child) is type(module) for child in siblings) > 1
        grade = grade_of_layer(module)
        if type(module) is nn.Sequential or grade == BLOCK:
            grade = BLOCK if repeated else STEP
        elif repeated and isinstance(self._model.get_submodule(above), nn.ModuleList):
            grade = max(grade, LAYER)
        return LAYER if grade > LAYER and in_repeated(self._model, above) else grade


def _counted(times: Sequence[int]) -> str:
    if not any(times):
        return "it is not called on the example"
    if 0 in times:
        return "it is called for some data only"
    return f"it runs {max(times)} times; name a module that runs once"


def _used(training: _Run) -> set[str]:
    """Return the paths of modules whose output the model's output depends on."""
    probed = [call for call in training.calls if call.probe is not None]
    out = training.out
    if not probed or not isinstance(out, Tensor) or not out.requires_grad:
        return set()
    grads = torch.autograd.grad(
        out.float().sum(), [call.probe for call in probed if call.probe is not None],
        allow_unused=True,
    )  # fmt: skip
    return {call.path for call, grad in zip(probed, grads, strict=True) if grad is not None}


def _is_layer(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.") or not any(module.children())


_TURNS: Final = {3: ((0, 2, 1),), 4: ((0, 2, 3, 1), (0, 3, 1, 2))}


def _turned(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the shape with the channels moved to the other end."""
    return [tuple(shape[axis] for axis in turn) for turn in _TURNS.get(len(shape), ())]
