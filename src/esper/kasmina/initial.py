"""Fresh initial values for many members at once, the same for member i whatever E is.

A factory builds ONE module. Three cases, per parameter or buffer:
- it comes out the same from two different seeds: a constant, copied;
- its layer declares how it is drawn (`layers.DrawnModule`): drawn for all members in one call;
- anything else (a user's own module): the factory is run once per member, inside a forked
  generator seeded from that member's stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from esper.kasmina.devices import send
from esper.kasmina.layers import Draw, DrawnModule
from esper.kasmina.rng import forked_rng
from esper.leyline.streams import UInt64Array, stream_keys

Factory = Callable[[], nn.Module]


def build(factory: Factory, key: int) -> nn.Module:
    """One module from its own stream, on the CPU."""
    with forked_rng(key & 0x7FFFFFFFFFFFFFFF):
        return factory()


def named_state(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter and buffer once, under its first name (a tied weight has one)."""
    for name, parameter in module.named_parameters():
        yield name, parameter.detach()
    yield from module.named_buffers()


class Initialiser:
    """Knows how a factory's parameters and buffers start, for any number of members."""

    def __init__(self, factory: Factory) -> None:
        self._factory = factory
        self.template = build(factory, 0)
        """One module of the kind, never trained: it lends its structure."""
        other = dict(named_state(build(factory, 1)))
        declared = _declared_draws(self.template)
        self._start = {name: value.clone() for name, value in named_state(self.template)}
        random = [name for name, value in self._start.items() if not value.equal(other[name])]
        self._draws = {name: declared[name] for name in random if name in declared}
        self._built = [name for name in random if name not in declared]

    def sample(self, keys: UInt64Array, device: torch.device) -> dict[str, Tensor]:
        """Initial values `[len(keys), ...]` of every parameter and buffer, by name."""
        count = len(keys)
        out: dict[str, Tensor] = {}
        for name, value in self._start.items():
            if name in self._draws:
                name_keys = stream_keys(0, keys.view(np.int64), name)
                flat = self._draws[name].sample(name_keys, value.numel(), device)
                out[name] = flat.view(count, *value.shape).to(value.dtype)
            else:
                out[name] = send(value, device).expand(count, *value.shape).clone()
        if self._built:
            states = [dict(named_state(build(self._factory, int(key)))) for key in keys]
            for name in self._built:
                out[name] = send(torch.stack([state[name] for state in states]), device)
        return out


def _declared_draws(module: nn.Module) -> dict[str, Draw]:
    """First parameter name -> draw, for every layer that declares its draws."""
    first_name = {id(parameter): name for name, parameter in module.named_parameters()}
    return {
        first_name[id(child.get_parameter(name))]: draw
        for child in module.modules()
        if isinstance(child, DrawnModule)
        for name, draw in child.untouched_draws().items()
    }
