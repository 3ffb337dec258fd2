"""A model that torch.fx cannot trace: it runs whole, and forward hooks hold the slots.

`planting` makes an ordinary module of it.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, fx, nn

from esper.device.rng import forked_rng
from esper.kasmina.tracing.hook_places import HookPlace, activation_of, hook_places
from esper.kasmina.tracing.inputs import Inputs, Raw
from esper.kasmina.tracing.tracer import BATCHES, pick_output
from esper.leyline.errors import EsperError
from esper.leyline.slots import InjectionSpec, Topology, slot_id

Factory = Callable[[], nn.Module]


@dataclass(frozen=True, slots=True)
class OutputKey:
    """Where the tensor to train on is in what a model returns."""

    key: str | int | None
    """None if it is all that is returned."""
    attribute: bool = False

    @staticmethod
    def of(out: Any, output: str | int | None) -> OutputKey:
        """Find the key of the output that `pick_output` picks."""
        picked = pick_output(out, output)
        if out is picked:
            return OutputKey(None)
        if isinstance(out, dict):
            return OutputKey(next(key for key, value in out.items() if value is picked))
        if isinstance(output, str) and getattr(out, output, None) is picked:
            return OutputKey(output, attribute=True)
        if dataclasses.is_dataclass(out):
            names = (part.name for part in dataclasses.fields(out))
            return OutputKey(next(n for n in names if getattr(out, n) is picked), attribute=True)
        if output is not None:
            return OutputKey(output)
        return OutputKey(next(index for index, value in enumerate(out) if value is picked))

    def pick(self, out: Any) -> Any:
        """Return the tensor."""
        if self.key is None:
            return out
        return getattr(out, str(self.key)) if self.attribute else out[self.key]


@dataclass(frozen=True, slots=True, eq=False)
class HookPlan:
    """Where the slots of a model are; all hosts of a kind share it."""

    topology: Topology
    places: tuple[HookPlace, ...]
    specs: tuple[InjectionSpec, ...]
    residual: tuple[bool, ...]
    """Whether the module of each place adds to its input."""
    key: OutputKey
    training_key: OutputKey
    """In training mode, where a model may return auxiliary outputs, too."""
    writes_input: bool
    """Whether the model writes over its input, which others read too."""

    def pick(self, out: Any, training: bool) -> Any:
        """Return the tensor to train on from what a model returns in a mode."""
        return (self.training_key if training else self.key).pick(out)

    def __deepcopy__(self, memo: dict[int, Any]) -> HookPlan:
        return self


class _HookedModule(nn.Module):
    """A module with a slot behind it, as a map from one tensor to one."""

    def __init__(self, module: nn.Module, in_tuple: bool, residual: bool) -> None:
        super().__init__()
        self.module = module
        self.in_tuple = in_tuple
        self.residual = residual
        """Whether it adds to its input."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x)
        return out[0] if self.in_tuple else out


class _Plan(Protocol):
    """What all hosts of a kind share."""

    @property
    def topology(self) -> Topology: ...
    @property
    def specs(self) -> tuple[InjectionSpec, ...]: ...


P = TypeVar("P", bound=_Plan)


class UserHost(nn.Module, Generic[P]):
    """A user's model with slots; parameters and buffers keep the user's names."""

    def __init__(self, model: nn.Module, plan: P) -> None:
        """`model` belongs to the host from now on."""
        super().__init__()
        # The same dictionaries: names stay the user's, and `model.train` keeps its effect.
        for name in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
            self.__dict__[name] = model.__dict__[name]
        self.__dict__["model"] = model
        self.plan = plan
        self.topology = plan.topology
        self.train()

    model: nn.Module
    """The user's."""

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        """The slots in order of execution."""
        return self.plan.specs

    def train(self, mode: bool = True) -> Self:
        """Set the mode as the user's model does, which may keep parts of it in eval mode."""
        self.model.train(mode)
        self.training = self.model.training
        return self


class HookedHost(UserHost[HookPlan]):
    """A user's model that runs whole."""

    def segments(self) -> Sequence[nn.Module]:
        """The modules with a slot behind them, and the whole host."""
        places = zip(self.plan.places, self.plan.residual, strict=True)
        hooked = [
            _HookedModule(self.model.get_submodule(place.path), place.in_tuple, residual)
            for place, residual in places
        ]
        return (*hooked, self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the user's model; returns the tensor that is trained on."""
        return self.plan.pick(self.model(*args, **kwargs), self.model.training)


class CannotHookError(EsperError):
    """A model has places, but does not run by hooks."""


# ---- hooks of a planted model: graphs, so that nothing of Esper is in it ------------------------


def seed_hook(seed: fx.GraphModule, in_tuple: bool) -> fx.GraphModule:
    """Return a seed as a forward hook: a module of (module, args, output)."""
    graph = fx.Graph()
    output = _hook_output(graph)
    h = graph.call_function(operator.getitem, (output, 0)) if in_tuple else output
    x = next(node for node in seed.graph.nodes if node.op == "placeholder")
    grown = graph.graph_copy(seed.graph, {x: h})
    assert isinstance(grown, fx.Node), "a seed returns one tensor"
    if in_tuple:
        others = graph.call_function(operator.getitem, (output, slice(1, None)))
        graph.output(graph.call_function(operator.add, ((grown,), others)))
    else:
        graph.output(grown)
    graph._tracer_cls = seed.graph._tracer_cls
    return fx.GraphModule(seed, graph, "Seed")


def pick_hook(key: OutputKey) -> fx.GraphModule:
    """Return a forward hook that picks the tensor that was trained on."""
    graph = fx.Graph()
    output = _hook_output(graph)
    pick = getattr if key.attribute else operator.getitem
    graph.output(graph.call_function(pick, (output, key.key)))
    return fx.GraphModule(nn.Module(), graph, "Pick")


def _hook_output(graph: fx.Graph) -> fx.Node:
    """Add the arguments of a forward hook; return the last, the module's output."""
    graph.placeholder("hooked")
    graph.placeholder("given")
    return graph.placeholder("output")


# ---- from a model to a plan -------------------------------------------------------------------


def plan_hooks(
    base: nn.Module,
    inputs: Inputs,
    example: Raw,
    slots: int | Sequence[str],
    output: str | int | None,
) -> HookPlan | None:
    """Find the places of a model and check that it runs by hooks; None if there is no place.

    Without slots (0) it is trained as it is, and nothing is checked but its output.
    """
    values = inputs.batch(example, BATCHES[0])
    with torch.no_grad(), forked_rng(0):
        out = inputs.call(copy.deepcopy(base).eval(), values)
        trained = inputs.call(copy.deepcopy(base).train(), inputs.batch(example, BATCHES[0]))
    key, training_key = OutputKey.of(out, output), OutputKey.of(trained, output)
    _check_output(base, key.pick(out))
    _check_output(base, training_key.pick(trained))
    if key != training_key and key.key is not None and slots != 0:
        raise CannotHookError(
            f"it returns {type(trained).__name__} in training and {type(out).__name__} in eval mode"
        )
    places = hook_places(base, inputs, example, slots, output) if slots != 0 else []
    if not places and slots != 0:
        return None
    specs = tuple(
        InjectionSpec(slot_id(0, col), place.channels, col, place.label)
        for col, place in enumerate(places)
    )
    return HookPlan(
        topology=places[0].topology if places else "mlp",
        places=tuple(places),
        specs=specs,
        residual=tuple(_is_residual(base, place) for place in places),
        key=key,
        training_key=training_key,
        writes_input=any(value._version for value in values),
    )


def _check_output(base: nn.Module, out: Any) -> None:
    name = type(base).__name__
    if not isinstance(out, Tensor):
        raise EsperError(f"{name} returns {type(out).__name__}, not a tensor: see output=")
    if out.ndim < 1 or len(out) != BATCHES[0]:
        raise EsperError(
            f"{name} turns a batch of {BATCHES[0]} into {tuple(out.shape)}: its output must be "
            f"batch first; pick another with output="
        )


def _is_residual(base: nn.Module, place: HookPlace) -> bool:
    """Whether a module without weights, all of them 0, returns its input."""
    module = copy.deepcopy(base.get_submodule(place.path)).eval()
    h = torch.linspace(0.5, 1.0, 2 * torch.Size(place.shape).numel()).view(2, *place.shape)
    with torch.no_grad(), forked_rng(0):
        for parameter in module.parameters():
            parameter.zero_()
        try:
            out = activation_of(module(h.clone()))
        except Exception:  # it takes other inputs
            return False
    return out is not None and out.shape == h.shape and torch.allclose(out, h)
