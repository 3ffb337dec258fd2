"""Stacked parameters cut over the ranks of a job: FSDP2 units over rows of one local tensor.

A unit is what is gathered at a time: the parameters of one host segment, of a seed, of a gate, or
those that several segments share. It is one flat parameter under `fully_shard`, whose local shard
is a view of this rank's `flat_EP`. So an optimiser step, clipping, snapshots and rollbacks work on
`flat_EP` as they do without ranks, on the local part; FSDP2 gathers a unit before its forward and
backward pass, frees it afterwards and scatters the sum of its gradients. Buffers and frozen
parameters are whole on every rank.

Shape letters: E members, N rows, P parameters of one member, L parameters of it on this rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from esper.device.shards import Shards
from esper.kasmina.layers.initialisation import Initialiser
from esper.kasmina.stacked.binding import Binding
from esper.kasmina.stacked.store import ParameterStore
from esper.leyline.streams import UInt64Array

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

ALIGNMENT: Final = 4
"""Parameters start at multiples of this many numbers: cuDNN needs 16 bytes."""

NamedCall = Callable[[dict[str, Tensor], Tensor], Tensor]
"""(whole parameters by name, input) -> output."""


class _UnitLayout:
    """Where the parameters of one unit stand in its flat parameter."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], ranks: int, first: int) -> None:
        self.shapes = dict(shapes)
        self.first = first
        """Where its shard starts in a row of `flat_EP`."""
        self.starts: dict[str, int] = {}
        size = 0
        for name, shape in self.shapes.items():
            self.starts[name] = size
            size += -(-math.prod(shape) // ALIGNMENT) * ALIGNMENT
        self.shard = -(-size // (ranks * ALIGNMENT)) * ALIGNMENT
        """Numbers of one rank; the last ones are padding."""

    @property
    def place(self) -> slice:
        """Columns of its shard in `flat_EP`."""
        return slice(self.first, self.first + self.shard)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views of the whole unit by name."""
        return {
            name: flat[start : start + math.prod(shape)].view(shape)
            for (name, shape), start in zip(self.shapes.items(), self.starts.values(), strict=True)
        }


@dataclass(frozen=True, slots=True)
class _BoundModule:
    """A module, the units of a store that it needs, and where its tensors go."""

    binding: Binding
    names: dict[str, str]
    """Own name -> name in the store."""
    units: tuple[int, ...]

    def state(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return its tensors by their own names."""
        return {own: named[name] for own, name in self.names.items()}


class ShardedStore(ParameterStore):
    """A store whose parameters are cut over ranks."""

    def __init__(
        self,
        initialiser: Initialiser,
        members: int,
        device: torch.device,
        shards: Shards,
        groups: Sequence[Sequence[str]] | None = None,
    ) -> None:
        """`groups`: names of the parameters of each unit; None: all of them are one unit."""
        self.shards = shards
        self._groups = groups
        self.units: list[_UnitLayout] = []
        self._modules: dict[tuple[int, int], _Unit] = {}
        self._bound: dict[int, _BoundModule] = {}
        super().__init__(initialiser, members, device)

    def _row_size(self) -> int:
        groups = [] if self._groups is None else [list(group) for group in self._groups]
        known = {name for group in groups for name in group}
        groups.append([name for name in self.shapes if name not in known])
        first = 0
        for group in groups:
            shapes = {name: self.shapes[name] for name in group if name in self.shapes}
            if shapes:
                self.units.append(_UnitLayout(shapes, self.shards.size, first))
                first += self.units[-1].shard
        return first

    @property
    def parameters_per_member(self) -> int:
        """P, of all ranks together and without padding."""
        return sum(self._sizes)

    def bound(self, module: nn.Module, names: Mapping[str, str] | None) -> _BoundModule:
        """Return how a part of the template runs; `names`: own -> the store's (None: the same)."""
        if id(module) not in self._bound:
            own = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
            held = {name: name if names is None else names[name] for name in own}
            used = set(held.values())
            units = tuple(i for i, unit in enumerate(self.units) if used & set(unit.shapes))
            self._bound[id(module)] = _BoundModule(Binding(module), held, units)
        return self._bound[id(module)]

    # ---- computing ------------------------------------------------------------------------

    def compute(
        self, member: int, units: Sequence[int], x: Tensor, call: NamedCall, frozen: bool
    ) -> Tensor:
        """Return `call(parameters, x)` with units gathered, now and in the backward pass.

        `frozen`: their gradient is not computed.
        """

        def gathered(remaining: Sequence[int], named: dict[str, Tensor], x: Tensor) -> Tensor:
            if not remaining:
                return call(named, x)
            layout = self.units[remaining[0]]

            def inside(flat: Tensor, x: Tensor) -> Tensor:
                return gathered(remaining[1:], named | layout.named(flat), x)

            out: Tensor = self._module(member, remaining[0])(x, inside, frozen)
            return out

        return gathered(units, {}, x)

    def _module(self, member: int, unit: int) -> _Unit:
        """Return the FSDP2 module of a unit, made at its first use."""
        key = (member, unit)
        if key not in self._modules:
            with torch.inference_mode(False):
                shard = self.flat_EP.detach()[member, self.units[unit].place]
                self._modules[key] = _shard_unit(shard, self.shards)
        return self._modules[key]

    def drop_units(self) -> None:
        """Forget the FSDP2 modules, which hold no values of their own; they are made again."""
        self._modules.clear()

    def collect_gradients(self) -> None:
        """Move the gradients of the units to `flat_EP`; None if there are none."""
        found = {k: m.flat.grad for k, m in self._modules.items() if m.flat.grad is not None}
        if not found:
            return
        grad_EL = torch.zeros_like(self.flat_EP)
        for (member, unit), grad in found.items():
            grad_EL[member, self.units[unit].place] = grad.to_local()  # type: ignore[attr-defined]
            self._modules[member, unit].flat.grad = None
        self.flat_EP.grad = grad_EL

    def begin_pass(self) -> None:
        """Before a forward pass: remove all gradients."""
        self.flat_EP.grad = None
        for module in self._modules.values():
            module.flat.grad = None

    # ---- over all ranks -------------------------------------------------------------------

    def whole(self, part: Tensor, device: torch.device | None = None) -> Tensor:
        """Gather rows `[N, L]` of this store to `[N, P]`, on every rank; other tensors are kept.

        `device`: where they are put together, one unit at a time; None: where they are.
        """
        if part.shape[1:] != self.flat_EP.shape[1:]:
            return part
        size = (len(part), self.parameters_per_member)
        out = torch.empty(size, dtype=part.dtype, device=device or part.device)
        for row, mine in zip(out, part, strict=True):
            views = self.named_row(row)
            for unit in self.units:
                flat = self.shards.gather_(mine[unit.place]).flatten()
                for name, value in unit.named(flat).items():
                    views[name].copy_(value)
        return out

    def part(self, whole: Tensor) -> Tensor:
        """Return this rank's part `[N, L]` of rows `[N, P]`."""
        out = torch.zeros(len(whole), self.flat_EP.shape[1], dtype=whole.dtype, device=self.device)
        for row, mine in zip(whole, out, strict=True):
            named = self.named_row(row)
            for unit in self.units:
                mine[unit.place] = self._shard_of(unit, self._flat(unit, named))
        return out

    def _flat(self, unit: _UnitLayout, named: Mapping[str, Tensor]) -> Tensor:
        """Return a whole unit of the given values, padding included."""
        flat = torch.zeros(unit.shard * self.shards.size, device=self.device)
        for name, view in unit.named(flat).items():
            view.copy_(named[name])
        return flat

    def _shard_of(self, unit: _UnitLayout, flat: Tensor) -> Tensor:
        first = self.shards.rank * unit.shard
        return flat[first : first + unit.shard]

    def total_norms(self, norm_E: Tensor) -> Tensor:
        """Return norms over all ranks from those of this rank's part."""
        return self.shards.add_(norm_E.square()).sqrt()

    def mean_square(self) -> Tensor:
        """Return `[E]` the mean square of all parameters."""
        total_E = self.shards.add_(self.flat_EP.detach().square().sum(dim=1))
        return total_E / max(1, self.parameters_per_member)

    def everywhere(self, flag_E: Tensor) -> Tensor:
        """Return whether a flag is set on all ranks."""
        return self.shards.least(flag_E)

    # ---- values ---------------------------------------------------------------------------

    def draw(self, keys: UInt64Array, index_N: Tensor, keys_N: Tensor | None = None) -> None:
        """Initialise rows `index_N`, with the values of rank 0: a user's may be random."""
        values = self.flat_EP.detach()
        for place, row in enumerate(index_N.tolist()):  # SYNC: a reset or a germination
            # On the CPU, one member at a time: a device need not hold a whole network.
            named = self._initialiser.sample(keys[place : place + 1], torch.device("cpu"))
            for unit in self.units:
                flat = self._flat(unit, {name: named[name][0] for name in unit.shapes})
                values[row, unit.place] = self._shard_of(unit, self.shards.broadcast_(flat))
            for name, stacked in self.fixed.items():
                given = named[name][0].to(self.device).contiguous()
                stacked[row] = self.shards.broadcast_(given)

    def inherit(self, source: ParameterStore, names: Mapping[str, str], index_N: Tensor) -> None:
        """Copy tensors of members `index_N` from another store; `names`: own -> the source's."""
        values = self.flat_EP.detach()
        whole_NP = self.whole(values.index_select(0, index_N))
        given_NP = source.whole(source.flat_EP.detach().index_select(0, index_N))
        own = self.named(whole_NP)
        given = source.named(given_NP)
        for name, source_name in names.items():
            fixed = source.fixed.get(source_name)
            row = given[source_name] if fixed is None else fixed.index_select(0, index_N)
            if name in own:
                own[name].copy_(row)
            else:
                self.fixed[name].index_copy_(0, index_N, row)
        values.index_copy_(0, index_N, self.part(whole_NP))

    def member_tensors(self, member: int) -> dict[str, Tensor]:
        """Return a member's parameters and buffers as copies, gathered from all ranks."""
        values = self.whole(self.flat_EP.detach()[member : member + 1])
        fixed = {name: stacked[member].clone() for name, stacked in self.fixed.items()}
        return self.named_row(values[0]) | fixed

    def release_template(self) -> None:
        """Free the values of the template, which are of no use once it has been tried."""
        self._initialiser.forget()
        for parameter in self.template.parameters():
            constant = parameter.detach().flatten()[:1].clone()
            if constant.numel():
                parameter.data = constant.expand(parameter.shape)


class _Unit(nn.Module):
    """One flat parameter, whole while `forward` runs."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.empty(size, device="meta"))

    def forward(
        self, x: Tensor, inside: Callable[[Tensor, Tensor], Tensor], frozen: bool
    ) -> Tensor:
        # FSDP2 hooks into the gradient of x and of the output: neither may be changed in place.
        given = x.clone() if x.requires_grad else x
        out = inside(self.flat.detach() if frozen else self.flat, given)
        return out.clone() if out._base is not None and out.requires_grad else out


def _shard_unit(shard: Tensor, shards: Shards) -> _Unit:
    """Return a unit under `fully_shard` whose local shard is the given view."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Shard

    unit = _Unit(shard.numel() * shards.size)
    sharded: FSDPModule = fully_shard(unit, mesh=shards.mesh, reshard_after_forward=True)
    # Every rank's gradient is of its share of one loss: they add up, and no mean is taken.
    sharded.set_gradient_divide_factor(1.0)
    sharded.set_force_sum_reduction_for_comms(True)
    local: Any = DTensor.from_local(shard, shards.mesh, [Shard(0)], run_check=False)
    unit.load_state_dict({"flat": local}, assign=True)
    return unit
