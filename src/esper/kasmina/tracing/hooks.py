"""A model that torch.fx cannot trace as a host: it runs whole, and forward hooks hold the slots.

    host = HookedHost(model, plan)
    out = host(x, visit)        # `visit(place, h)` returns what is passed on instead of h

There is no chain to continue in its middle, so a population cannot hold it; `planting` makes an
ordinary module of it.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from esper.device.rng import forked_rng
from esper.kasmina.tracing.hook_places import HookPlace, activation_of, hook_places
from esper.kasmina.tracing.inputs import Inputs, Raw
from esper.kasmina.tracing.tracer import BATCHES, kept_random_state, pick_output
from esper.leyline.errors import EsperError
from esper.leyline.slots import InjectionSpec, Topology, slot_id
from esper.leyline.user_errors import format_error

Factory = Callable[[], nn.Module]
Visit = Callable[[int, Tensor], Tensor]
"""Position of a place and its activation -> what is passed on."""


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
    inputs: Inputs
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


class HookedModule(nn.Module):
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


class HookedHost(nn.Module):
    """A user's model that runs whole; parameters and buffers keep the user's names."""

    runs_whole: bool = True
    """Its segments are no chain: `forward(x, visit)` is the only way through. Populations refuse
    it."""

    def __init__(self, model: nn.Module, plan: HookPlan) -> None:
        """`model` belongs to the host from now on."""
        super().__init__()
        # The same dictionaries: names stay the user's, and `model.train` keeps its effect.
        for name in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
            self.__dict__[name] = model.__dict__[name]
        self.__dict__["_model"] = model
        self._plan = plan
        self.train()

    @property
    def plan(self) -> HookPlan:
        """Where its slots are."""
        return self._plan

    @property
    def model(self) -> nn.Module:
        """The user's model."""
        found: nn.Module = self.__dict__["_model"]
        return found

    @property
    def topology(self) -> Topology:
        """Kind of network."""
        return self._plan.topology

    def segments(self) -> Sequence[nn.Module]:
        """The modules with a slot behind them, and the whole host."""
        places = zip(self._plan.places, self._plan.residual, strict=True)
        hooked = [
            HookedModule(self.model.get_submodule(place.path), place.in_tuple, residual)
            for place, residual in places
        ]
        return (*hooked, self)

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        """The slots in order of execution."""
        return self._plan.specs

    def forward(self, x: Tensor, visit: Visit | None = None) -> Tensor:
        """Run the model on packed inputs; `visit` may replace the activation of each place."""
        plan, model = self._plan, self.model
        model.training = self.training  # set without `train` by those who restore modes
        values = plan.inputs.unpack(x.clone() if plan.writes_input else x)
        with self._hooks(visit):
            out: Tensor = plan.pick(plan.inputs.call(model, values), model.training)
        return out

    @contextlib.contextmanager
    def _hooks(self, visit: Visit | None) -> Iterator[None]:
        """Call `visit` at every place inside the block."""
        if visit is None:
            yield
            return
        handles = [
            self.model.get_submodule(place.path).register_forward_hook(_hook(index, visit))
            for index, place in enumerate(self._plan.places)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def train(self, mode: bool = True) -> HookedHost:
        """Set the mode as the user's model does, which may keep parts of it in eval mode."""
        self.model.train(mode)
        self.training = self.model.training
        return self


def _hook(index: int, visit: Visit) -> Callable[..., Any]:
    def hook(_: nn.Module, __: Any, out: Any) -> Any:
        if isinstance(out, tuple):
            return (visit(index, out[0]), *out[1:])
        return visit(index, out)

    return hook


class CannotHookError(EsperError):
    """A model has places, but does not run by hooks."""


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
    plan = HookPlan(
        topology=places[0].topology if places else "mlp",
        places=tuple(places),
        specs=specs,
        residual=tuple(_is_residual(base, place) for place in places),
        inputs=inputs,
        key=key,
        training_key=training_key,
        writes_input=any(value._version for value in values),
    )
    for training in (False, True) if places else ():
        _check_same(base, plan, inputs.batch(example, BATCHES[1]), training)
    return plan


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


def _check_same(base: nn.Module, plan: HookPlan, values: list[Tensor], training: bool) -> None:
    """Raise unless the host, with parameters given from outside, computes what the model does."""
    model = copy.deepcopy(base).train(training)
    with torch.no_grad():
        for parameter in model.parameters():  # values that the host's own parameters do not have
            if parameter.is_floating_point():
                parameter.mul_(1.0625)
    host = HookedHost(copy.deepcopy(base), plan).train(training)
    named = {name: p.detach().clone() for name, p in model.named_parameters()}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    learnt = [name for name, p in model.named_parameters() if p.requires_grad]
    given = [named[name].requires_grad_() for name in learnt]
    with torch.enable_grad():
        with kept_random_state():
            returned = plan.inputs.call(model, [v.clone() for v in values])
            wanted = plan.pick(returned, model.training)
            expected = _gradients(wanted, [model.get_parameter(name) for name in learnt])
        with kept_random_state():
            x = plan.inputs.pack(values).clone()
            out = functional_call(host, named | buffers, (x, lambda _, h: h))
            found = _gradients(out, given)
    pairs = [(out, wanted), *zip(found, expected, strict=True)]
    if all(a.shape == b.shape and torch.allclose(a, b, 1e-4, 1e-5, True) for a, b in pairs):
        return
    mode = "training" if training else "eval"
    raise CannotHookError(
        f"in {mode} mode its output or gradient is another when its parameters are given from "
        f"outside: it may hold them in a list, or compute parts again in the backward pass"
    )


def _gradients(out: Tensor, parameters: list[Tensor]) -> tuple[Tensor, ...]:
    if not parameters or not out.requires_grad:
        return ()
    try:
        return torch.autograd.grad(out.float().square().sum(), parameters, materialize_grads=True)
    except RuntimeError as error:
        raise CannotHookError(f"its backward pass fails ({format_error(error)})") from error
