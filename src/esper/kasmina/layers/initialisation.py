"""Initial parameters for many members at once, independent of the number of members.

A factory builds ONE module. For each parameter or buffer: - if two different seeds give the same
value, it is a constant and copied; - if its layer declares its initialisation
(`layers.DrawnModule`), it is drawn for all members in one
  call;
- otherwise (user modules) the factory is called once per member, with the generator seeded from
that
  member's stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from esper.device.rng import forked_rng
from esper.device.upload import to_device
from esper.kasmina.layers.layers import Draw, DrawnModule
from esper.kasmina.ops.flat_draws import FlatDraws
from esper.leyline.errors import EsperError
from esper.leyline.streams import GOLDEN, UInt64Array, name_word, stream_keys
from esper.leyline.user_errors import user_code

Factory = Callable[[], nn.Module]


def build(factory: Factory, key: int, what: str = "host factory") -> nn.Module:
    """Build one module from its own random stream, on the CPU; `what` is for errors."""
    if isinstance(factory, nn.Module) or not callable(factory):
        kind = type(factory).__name__
        raise EsperError(
            f"{what}: {kind}(...) is already built, and every member needs its own; give the class "
            f"or a function, as in lambda: {kind}(...)"
        )
    name = getattr(factory, "__name__", type(factory).__name__)
    what = what if name == "<lambda>" else f"{what} {name}"
    with (
        forked_rng(key & 0x7FFFFFFFFFFFFFFF),
        user_code(f"{what} fails", "it is called without arguments", TypeError),
    ):
        module: object = factory()
    if not isinstance(module, nn.Module):
        kind = f"the class {module.__name__}" if isinstance(module, type) else type(module).__name__
        raise EsperError(f"{what} returns {kind}: it must return an nn.Module, a new one each time")
    return module


def named_state(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter and buffer once, under its first name (tied weights have several)."""
    for name, parameter in module.named_parameters():
        yield name, parameter.detach()
    yield from module.named_buffers()


def check_not_scripted(module: nn.Module) -> None:
    """Raise if a module is compiled code of torch.jit, which can be neither traced nor hooked."""
    for path, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            name = f"{type(module).__name__}: {path}" if path else type(module).__name__
            raise EsperError(
                f"{name} is a ScriptModule of torch.jit, whose code cannot be grown; give the "
                f"module that it was made from, before torch.jit.script or torch.jit.trace"
            )


def check_parameters(module: nn.Module) -> None:
    """Raise unless all tensors are materialised and all parameters are float32."""
    check_not_scripted(module)
    kind = type(module).__name__
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise EsperError(
                f"{kind} parameter {name!r} is lazy and has no size yet: give the sizes (nn.Linear "
                f"in place of nn.LazyLinear), or pass one batch through it in the factory"
            )
        if tensor.is_meta:
            raise EsperError(f"{kind} {name!r} is on the meta device and holds no values: use cpu")
    for name, parameter in module.named_parameters():
        found = parameter.dtype
        if found != torch.float32 and (parameter.requires_grad or found.is_floating_point):
            raise EsperError(
                f"{kind} parameter {name!r} is {str(found).removeprefix('torch.')}: members are "
                f"stacked in float32; call .float() on the module where it is built"
            )


class Initialiser:
    """Draws the initial parameters and buffers of a factory for any number of members."""

    def __init__(self, factory: Factory, what: str = "host factory") -> None:
        self._factory, self._what = factory, what
        self.template = build(factory, 0, what)
        """One module, never trained: it provides the structure."""
        check_parameters(self.template)
        another = build(factory, 1, what)
        if another is self.template:
            raise EsperError(
                f"{what} returns the same {type(another).__name__} each time: build a new one at "
                f"each call, as in lambda: copy.deepcopy(model)"
            )
        other = self._state_of(another)
        declared = _declared_draws(self.template)
        self._start = {name: value.clone() for name, value in named_state(self.template)}
        """Values of the template; empty: forgotten, and built again when they are needed."""
        random = [name for name, value in self._start.items() if not value.equal(other[name])]
        self._draws = {name: declared[name] for name in random if name in declared}
        self._built = [name for name in random if name not in declared]
        self._constants: dict[tuple[str, torch.device], Tensor] = {}

    def forget(self) -> None:
        """Free the values that are kept for later draws."""
        self._start = {}
        self._constants = {}

    def rebuild(self) -> nn.Module:
        """Build another module equal to the initial template."""
        return build(self._factory, 0, self._what)

    def sample(self, keys: UInt64Array, device: torch.device) -> dict[str, Tensor]:
        """Return initial values `[len(keys), ...]` of every parameter and buffer, by name."""
        count = len(keys)
        out: dict[str, Tensor] = {}
        for name, value in (self._start or dict(named_state(self.rebuild()))).items():
            if name in self._draws:
                name_keys = stream_keys(0, keys.view(np.int64), name)
                flat = self._draws[name].sample(name_keys, value.numel(), device)
                out[name] = flat.view(count, *value.shape).to(value.dtype)
            else:
                constant = self._constant(name, value, device)
                out[name] = constant.expand(count, *value.shape).clone()
        if self._built:
            built = (build(self._factory, int(key), self._what) for key in keys)
            states = [self._state_of(module) for module in built]
            for name in self._built:
                out[name] = to_device(torch.stack([state[name] for state in states]), device)
        return out

    def flat_draws(self, names: Iterable[str], device: torch.device) -> FlatDraws | None:
        """Return the draws of the parameters `names`, in a row; None if they are not that simple:
        normal, not declared, or not kept here."""
        parts: list[tuple[Tensor, ...]] = []
        for name in names:
            draw, value = self._draws.get(name), self._start.get(name)
            if (
                value is None
                or name in self._built
                or (draw is not None and draw.kind != "uniform")
            ):
                return None
            flat = value.reshape(-1)
            word = int(name_word(name).view(np.int64))
            counter = np.arange(1, len(flat) + 1, dtype=np.uint64) * np.uint64(GOLDEN)
            scale = torch.full_like(flat, 0.0 if draw is None else draw.scale)
            words = torch.full((len(flat),), word, dtype=torch.int64)
            parts.append((words, torch.from_numpy(counter.view(np.int64)), scale, flat))
        if not parts:
            return None
        joined = (torch.cat(column) for column in zip(*parts, strict=True))
        return FlatDraws(*(to_device(column, device) for column in joined))

    def _constant(self, name: str, value: Tensor, device: torch.device) -> Tensor:
        """Return an initial value that is the same for all members, uploaded once if it is kept."""
        if not self._start:
            return to_device(value, device)
        if (name, device) not in self._constants:
            self._constants[name, device] = to_device(value, device)
        return self._constants[name, device]

    def _state_of(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the values of another module; raises unless it is laid out as the template."""
        state = dict(named_state(module))
        first, later = _shapes(self.template), _shapes(module)
        for name in (*first, *later):
            if first.get(name) != later.get(name):
                raise EsperError(
                    f"{self._what}: {name!r} has shape {first.get(name)} at one call and "
                    f"{later.get(name)} at another; every call must build the same architecture"
                )
        return state


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in named_state(module)}


def _declared_draws(module: nn.Module) -> dict[str, Draw]:
    """Return first parameter name -> draw, for every layer that declares its draws."""
    first_name = {id(parameter): name for name, parameter in module.named_parameters()}
    return {
        first_name[id(child.get_parameter(name))]: draw
        for child in module.modules()
        if isinstance(child, DrawnModule)
        for name, draw in child.unmodified_draws().items()
    }
