"""Save and load populations and members.

A population's save holds everything needed to resume exactly: stacked parameters, optimiser state,
lifecycle arrays, rates and settings. A member's save holds one model with its seeds in any stage.
The host's code is not saved: a factory that builds something else raises with the difference.

Loading builds a new object of the same structure, lists its tensors under the names used in the
save, and copies.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from esper.device.selection import parse_device
from esper.kasmina.blueprints.registry import BlueprintRegistry
from esper.kasmina.costs.probe import HostProbe
from esper.kasmina.executors.base import Executor
from esper.kasmina.executors.choice import ExecutorChoice
from esper.kasmina.executors.loop import LoopExecutor
from esper.kasmina.executors.vmap import VmapExecutor
from esper.kasmina.layers.host_checks import as_host, host_slots
from esper.kasmina.layers.initialisation import build, named_state
from esper.kasmina.saving.population_config import PopulationConfig
from esper.kasmina.stacked.network import StackedNetwork
from esper.kasmina.stacked.store import ParameterStore
from esper.kasmina.training.losses import RowLoss
from esper.leyline.codec import read_record
from esper.leyline.compute import ExecutorName
from esper.leyline.errors import EsperError
from esper.leyline.slots import InjectionSpec, SlotReport, Topology
from esper.storage.saves import PathLike, Saved, read_save, write_save

if TYPE_CHECKING:
    from esper.kasmina.export.member import MorphogeneticModel
    from esper.kasmina.population import Population

HostFactory = Callable[[], nn.Module]
RESTARTS, RESTARTABLE = "restarts_E", "restartable_E"
"""Arrays of the lifecycle: what a save holds only if it is not 0, and what the engine sets anew."""
_EXECUTORS: dict[str, Callable[[], Executor]] = {"vmap": VmapExecutor, "loop": LoopExecutor}


@dataclass(frozen=True, slots=True)
class _TensorSpec:
    """Name, shape and dtype of one parameter or buffer."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class _StoreSpec:
    """Layout of a store's rows."""

    parameters: tuple[_TensorSpec, ...]
    fixed: tuple[_TensorSpec, ...]
    """Buffers and frozen parameters."""
    moments: tuple[str, ...]
    """Optimiser state; empty before the first step."""


@dataclass(frozen=True, slots=True)
class _BankSpec:
    """One bank of seeds."""

    slot: str
    blueprint: str
    store: _StoreSpec


@dataclass(frozen=True, slots=True)
class _GateSpec:
    """The gates of one slot."""

    slot: str
    store: _StoreSpec


@dataclass(frozen=True, slots=True)
class HostSpec:
    """Host class, and the enabled slots in execution order."""

    class_name: str
    topology: Topology
    slots: tuple[InjectionSpec, ...]


@dataclass(frozen=True, slots=True)
class _PopulationContent:
    """A population without its tensors."""

    host: HostSpec
    members: int
    seed: int
    round: int
    blueprints: tuple[str, ...]
    loss: str
    """Name of the training loss; its code is not saved."""
    config: PopulationConfig
    probe: HostProbe | None
    executor: str | None
    """The executor in use (`auto` may have chosen it by a trial); None before the first input."""
    host_store: _StoreSpec
    banks: tuple[_BankSpec, ...]
    """In order of first use, which sums over banks follow."""
    gates: tuple[_GateSpec, ...]
    passes: int
    """Most training passes of a member in this episode. The tensor `passes_E` has those of each,
    where random layers resume."""
    member_ids: tuple[int, ...] | None
    """Members' numbers in the names of random streams; None: their indices."""


@dataclass(frozen=True, slots=True)
class _MemberContent:
    """A member without its tensors."""

    host: HostSpec
    member: int
    reports: tuple[SlotReport, ...]
    """State of each slot, in slot order."""
    host_macs: int | None
    tensors: tuple[_TensorSpec, ...]


# ---- populations --------------------------------------------------------------------------


def save_population(population: Population, path: PathLike) -> None:
    """Save a population to a folder, replacing an existing save; rank 0 writes if it is sharded."""
    restarted = bool(population.lifecycle.restarts_E.any())
    content, tensors = _describe(population), population_tensors(population, restarted)
    for name, store in _row_state(population).items():
        tensors[name] = store.whole(tensors[name], torch.device("cpu"))

    def write() -> None:
        write_save(path, "population", content, tensors)

    shards = population.network.shards
    write() if shards is None else shards.on_first(write)


def load_population(
    kind: type[Population],
    path: PathLike,
    host_factory: HostFactory,
    device: str | torch.device,
    executor: ExecutorName | None,
    loss: RowLoss,
) -> Population:
    """Load a population from a folder; `kind`: its class, which imports this module."""
    saved = read_save(path, "population")
    content = read_record(_PopulationContent, saved.content, saved.where)
    _check_host(content.host, host_factory, saved.where)
    _check_registered(content.blueprints, content.host.topology, saved.where)
    if content.loss != _loss_name(loss):
        raise EsperError(
            f"{saved.where} was trained on the loss {content.loss!r}, given {_loss_name(loss)!r}: "
            f"pass that one as loss=, and set population.loss afterwards if it is to change"
        )
    config = content.config if executor is None else replace(content.config, executor=executor)
    slots = [spec.slot_id for spec in content.host.slots]
    population = kind(
        host_factory, slots, content.blueprints, content.members, content.seed, device, config, loss
    )
    population.round = content.round
    if content.member_ids is not None:
        population.member_ids[:] = content.member_ids
    population.probe = content.probe
    if executor is None and content.executor in _EXECUTORS:  # a new trial might choose otherwise
        population.choice = ExecutorChoice(_EXECUTORS[content.executor](), "as in the save")
    _allocate(population, content)
    _check_stores(content, _describe(population), saved.where)
    own = population_tensors(population, f"lifecycle/{RESTARTS}" in saved.tensors)
    for name, store in _row_state(population).items():
        size = (population.members, store.parameters_per_member)
        if name in saved.tensors and saved.tensors[name].shape == size:
            saved.tensors[name] = store.part(saved.tensors[name])
    _fill(own, saved)
    return population


def population_tensors(population: Population, restarted: bool = True) -> dict[str, Tensor]:
    """Return all mutable tensors by their name in a save; not copies.

    `restarted`: members have begun anew; otherwise a save has no counts of that.
    """
    out: dict[str, Tensor] = {}
    for ref in population.trainer.stores():
        out[f"{ref.name}/values"] = ref.store.flat_EP.detach()
        out |= {f"{ref.name}/fixed/{name}": value for name, value in ref.store.fixed.items()}
        out |= {f"{ref.name}/optimizer/{name}": value for name, value in ref.state.items()}
    left_out = {RESTARTABLE} if restarted else {RESTARTABLE, RESTARTS}
    for array_name, array in population.lifecycle.arrays().items():
        if array_name not in left_out:
            out[f"lifecycle/{array_name}"] = torch.from_numpy(array)
    out["passes_E"] = population.passes_E
    out["rates/host_lr_E"] = population.trainer.host_lr_E
    out["rates/seed_lr_E"] = population.trainer.seed_lr_E
    return out


def _row_state(population: Population) -> dict[str, ParameterStore]:
    """Return names of tensors with a number per parameter -> the store they belong to."""
    out: dict[str, ParameterStore] = {}
    for ref in population.trainer.stores():
        size = ref.store.flat_EP.shape
        like = [name for name, value in ref.state.items() if value.shape == size]
        out |= {f"{ref.name}/optimizer/{name}": ref.store for name in like}
        out[f"{ref.name}/values"] = ref.store
    return out


def _describe(population: Population) -> _PopulationContent:
    network = population.network
    specs = [_store_spec(ref.store, tuple(ref.state)) for ref in population.trainer.stores()]
    banks, gates = specs[1 : 1 + len(network.banks)], specs[1 + len(network.banks) :]
    slots, names = population.slots, population.blueprints
    choice = population.choice
    # A sharded population is saved as what loop would have: it may be loaded without its ranks.
    sharded = network.shards is not None
    return _PopulationContent(
        host=_host_spec(network),
        members=population.members,
        seed=population.seed,
        round=population.round,
        blueprints=names,
        loss=_loss_name(population.loss),
        config=replace(population.config, executor="loop") if sharded else population.config,
        probe=population.probe,
        executor=None if choice is None else "loop" if sharded else choice.executor.name,
        host_store=specs[0],
        banks=tuple(
            _BankSpec(slots[s], names[k], spec)
            for (s, k), spec in zip(network.banks, banks, strict=True)
        ),
        gates=tuple(
            _GateSpec(slots[s], spec) for s, spec in zip(network.gates, gates, strict=True)
        ),
        passes=int(population.passes_E.max()),  # SYNC: a save waits for the device anyway
        member_ids=_shared_ids(population),
    )


def _shared_ids(population: Population) -> tuple[int, ...] | None:
    """Stream numbers of the members, if they are not their indices."""
    if np.array_equal(population.member_ids, np.arange(population.members)):
        return None
    return tuple(population.member_ids.tolist())


def _host_spec(network: StackedNetwork) -> HostSpec:
    return HostSpec(type(network.host.template).__name__, network.topology, network.slots)


def _store_spec(store: ParameterStore, moments: tuple[str, ...]) -> _StoreSpec:
    dtype = _dtype_name(store.flat_EP)
    return _StoreSpec(
        tuple(_TensorSpec(name, shape, dtype) for name, shape in store.shapes.items()),
        tuple(_TensorSpec(n, tuple(v.shape[1:]), _dtype_name(v)) for n, v in store.fixed.items()),
        moments,
    )


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _loss_name(loss: RowLoss) -> str:
    return str(getattr(loss, "__qualname__", type(loss).__qualname__))


def _allocate(population: Population, content: _PopulationContent) -> None:
    """Allocate the banks, gates and optimiser state of a save."""
    for bank in content.banks:
        s, k = population.slots.index(bank.slot), population.blueprints.index(bank.blueprint)
        population.network.bank(s, k)
    for gate in content.gates:
        population.network.gate(population.slots.index(gate.slot))
    specs = _specs_of(content).values()
    for ref, spec in zip(population.trainer.stores(), specs, strict=True):
        if spec.moments:
            ref.optimizer.moments(ref.key, ref.store.flat_EP.detach())


# ---- members ------------------------------------------------------------------------------


def save_member(
    path: PathLike,
    model: nn.Module,
    host: HostSpec,
    member: int,
    reports: tuple[SlotReport, ...],
    host_macs: int | None,
) -> None:
    """Save one member to a folder, replacing an existing save."""
    # Copies: a member's parameters may be views of one tensor, which safetensors rejects.
    tensors = {name: value.detach().clone() for name, value in named_state(model)}
    content = _MemberContent(host, member, reports, host_macs, _tensor_specs(tensors))
    write_save(path, "member", content, tensors)


def load_member(
    kind: type[MorphogeneticModel],
    path: PathLike,
    host_factory: HostFactory,
    device: str | torch.device,
) -> tuple[MorphogeneticModel, int]:
    """Load a member with its own parameters; return it and its index in its population.

    `kind`: its class, which imports this module.
    """
    saved = read_save(path, "member")
    content = read_record(_MemberContent, saved.content, saved.where)
    _check_host(content.host, host_factory, saved.where)
    reports = {report.slot_id: report for report in content.reports}
    kinds = tuple(sorted({r.blueprint for r in content.reports if r.blueprint is not None}))
    _check_registered(kinds, content.host.topology, saved.where)
    slots = [spec.slot_id for spec in content.host.slots]
    alone = StackedNetwork(host_factory, slots, kinds, members=1, device=parse_device(device))
    model = copy.deepcopy(kind(alone, 0, reports, content.host_macs))
    own = dict(named_state(model))
    _check_tensors(content.tensors, _tensor_specs(own), "member", saved.where)
    _fill(own, saved)
    return model, content.member


def _tensor_specs(tensors: Mapping[str, Tensor]) -> tuple[_TensorSpec, ...]:
    return tuple(_TensorSpec(n, tuple(v.shape), _dtype_name(v)) for n, v in tensors.items())


# ---- validation ---------------------------------------------------------------------------


def _check_host(saved: HostSpec, host_factory: HostFactory, where: str) -> None:
    """Raise unless the factory builds the saved host class and topology with the saved slots."""
    host = build(host_factory, 0)
    offered = host_slots(as_host(host))
    found = HostSpec(type(host).__name__, as_host(host).topology, tuple(offered.values()))
    for name in ("class_name", "topology"):
        if getattr(found, name) != getattr(saved, name):
            raise _misfit(where, f"host {name}", getattr(saved, name), getattr(found, name))
    for spec in saved.slots:
        if offered.get(spec.slot_id) != spec:
            raise _misfit(where, f"slot {spec.slot_id}", spec, offered.get(spec.slot_id))


def _check_registered(blueprints: tuple[str, ...], topology: Topology, where: str) -> None:
    known = BlueprintRegistry.names(topology)
    for name in blueprints:
        if name not in known:
            raise EsperError(
                f"{where} holds the blueprint {name!r}, which is not registered for {topology} "
                f"hosts: import the module that registers it (known: {', '.join(known)})"
            )


def _specs_of(content: _PopulationContent) -> dict[str, _StoreSpec]:
    """Return the layout of every store by its owner, in the order of `Trainer.stores`."""
    return {
        f"host {content.host.class_name}": content.host_store,
        **{f"blueprint {one.blueprint} in slot {one.slot}": one.store for one in content.banks},
        **{f"gate in slot {one.slot}": one.store for one in content.gates},
    }


def _check_stores(saved: _PopulationContent, found: _PopulationContent, where: str) -> None:
    """Raise unless every store of the new population has the saved layout."""
    layouts = _specs_of(found)
    for owner, old in _specs_of(saved).items():
        new = layouts[owner]
        _check_tensors(old.parameters, new.parameters, f"{owner} parameter", where)
        _check_tensors(old.fixed, new.fixed, f"{owner} buffer", where)
        if old.moments != new.moments:
            raise _misfit(where, f"{owner} optimiser state", old.moments, new.moments)


def _check_tensors(
    saved: tuple[_TensorSpec, ...], found: tuple[_TensorSpec, ...], owner: str, where: str
) -> None:
    """Raise at the first difference between tensor lists."""
    old, new = {spec.name: spec for spec in saved}, {spec.name: spec for spec in found}
    for name in (*old, *new):
        if old.get(name) != new.get(name):
            raise _misfit(where, f"{owner} {name!r}", old.get(name), new.get(name))
    if tuple(old) != tuple(new):
        raise _misfit(where, f"{owner} order", tuple(old), tuple(new))


def _misfit(where: str, what: str, saved: object, found: object) -> EsperError:
    return EsperError(
        f"{where} {what}: saved {_shown(saved)}, the host factory and blueprints now give "
        f"{_shown(found)}; load with the code it was saved with"
    )


def _shown(value: object) -> str:
    """Format a value for a one-line message."""
    if value is None:
        return "none"
    if isinstance(value, _TensorSpec):
        return f"{value.shape} {value.dtype}"
    if isinstance(value, InjectionSpec):
        return f"{value.channels} channels after segment {value.position} ({value.surface})"
    return repr(value)


def _fill(own: Mapping[str, Tensor], saved: Saved) -> None:
    """Copy the saved tensors into a new object's."""
    for name in (*own, *saved.tensors):
        old, new = saved.tensors.get(name), own.get(name)
        if old is None or new is None or old.shape != new.shape or old.dtype != new.dtype:
            (old_spec, new_spec) = (
                None if t is None else _TensorSpec(name, tuple(t.shape), _dtype_name(t))
                for t in (old, new)
            )
            raise _misfit(saved.where, f"tensor {name!r}", old_spec, new_spec)
    for name, tensor in own.items():
        tensor.copy_(saved.tensors[name])
