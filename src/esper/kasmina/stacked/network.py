"""Stacked host, its segments, and the banks of seeds.

The network holds structure and parameters; `lifecycle` holds stages and alphas, and the executors
define the computation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from esper.device.memory import keep_freed_memory
from esper.device.rng import forked_rng
from esper.device.shards import Shards
from esper.kasmina.blueprints.registry import Blueprint, BlueprintRegistry, HostSegment
from esper.kasmina.blueprints.seed_places import (
    Segment,
    build_seed,
    find_sources,
    misfit,
    named_segments,
    sample_activation,
)
from esper.kasmina.layers.blending import Gate
from esper.kasmina.layers.host_checks import (
    as_host,
    check_activation,
    enabled_slots,
    require_names,
)
from esper.kasmina.layers.initialisation import Initialiser
from esper.kasmina.layers.layers import has_hooks
from esper.kasmina.layers.random_layers import Site
from esper.kasmina.layers.random_probe import (
    draws_in_evaluation,
    find_draws,
    report_draws,
    report_evaluation,
)
from esper.kasmina.lifecycle import resolve_target_slot
from esper.kasmina.stacked.binding import Binding
from esper.kasmina.stacked.store import ParameterStore
from esper.leyline.arrays import Ints
from esper.leyline.errors import EsperError, ShapeError, unknown_name
from esper.leyline.slots import InjectionSpec, Topology
from esper.leyline.user_errors import user_code


@dataclass(frozen=True, slots=True)
class FusedRun:
    """The segments between two slots as one module, which reduces the number of calls."""

    samplewise: tuple[nn.Module, ...]
    """Leading modules without parameters that act on each sample independently: on a CPU they run
    on the samples of all rows as one batch, without vmap."""
    segment: Segment
    """The remaining modules as one segment."""
    last: int
    """Position of its last segment."""
    site: Site | None = None
    """Random-number site; then it is a single segment."""

    def returns_new_grad(self) -> bool:
        """Whether the gradient of the input is a tensor that nothing else refers to.

        True if the first module says so itself (`new_grad`; a subclass might differ) and has no
        hook, which could keep the gradient.
        """
        first = self.samplewise[0] if self.samplewise else self.segment.module
        while isinstance(first, nn.Sequential):
            first = next((m for m in first if type(m) is not nn.Identity), nn.Identity())
        return vars(type(first)).get("new_grad") is True and not has_hooks(first)

    def returns_new_output(self) -> bool:
        """Whether a fused block ends the run, whose output nothing else refers to.

        True if the last module says so itself (`new_output`) and has no hook.
        """
        last: nn.Module = self.segment.module
        while isinstance(last, nn.Sequential) and len(last):
            last = last[-1]
        return vars(type(last)).get("new_output") is True and not has_hooks(last)


class StackedNetwork:
    """E stacked hosts, with a bank of E seeds per (slot, blueprint) in use."""

    def __init__(
        self,
        host_factory: Callable[[], nn.Module],
        slots: Sequence[str],
        blueprints: Sequence[str],
        members: int,
        device: torch.device,
        shards: Shards | None = None,
    ) -> None:
        """`shards`: the ranks that hold the network together; None: this process holds it whole."""
        self.members = members
        self.device = device
        self.shards = shards
        if device.type == "cpu":
            keep_freed_memory()
        initialiser = Initialiser(host_factory)
        template = as_host(initialiser.template)
        self.topology: Topology = template.topology
        self.host = self._store(initialiser, _units(named_segments(template)))
        self.segments = named_segments(template)  # once it is on its device: that replaces buffers
        self.host.binding = Binding(self.host.template, [s.module for s in self.segments])
        self.slots = enabled_slots(template, slots, len(self.segments))
        self.sites: dict[int, Site] | None = None
        """Position -> site of each segment that draws random numbers in training; None until an
        input was seen (`find_sites`)."""
        self.layout_trial: Callable[[StackedNetwork], bool] | None = None
        """Tries whether the host computes the same from channels-last images; None: it was."""
        self._any_layout = False
        self.repeatable = True
        """Whether all random numbers of the host come from Esper's streams."""
        self.fused_runs = _fuse_runs(self.segments, self.slots, device.type == "cpu", {})
        self.fused_pairs = _fuse_pairs(self.segments) if device.type == "cpu" else {}
        """Position -> fused module of a segment and the next one, used if no seed is between them;
        see `usable_fused_pairs`."""
        self.blueprints = _enabled_blueprints(blueprints, self.topology)
        self._sources: dict[int, HostSegment] = {}
        """slot -> segment that seeds made from the host are made from."""
        if any(recipe.from_host for recipe in self.blueprints):
            host = as_host(initialiser.rebuild())
            self._sources = find_sources(named_segments(host), host.topology, self.slots)
        self._misfits_SK = [
            [self._misfit(slot, recipe) for recipe in self.blueprints]
            for slot in range(len(self.slots))
        ]
        self.fits_SK = np.array(
            [[reason is None for reason in reasons] for reasons in self._misfits_SK],
            dtype=np.bool_,
        ).reshape(len(self.slots), len(self.blueprints))
        self.banks: dict[tuple[int, int], ParameterStore] = {}
        """(slot, blueprint) -> E rows, allocated at first use."""
        self.tap: Callable[[int, Tensor], None] | None = None
        """Called by executors with every slot and its activation, after seeds were added; the vmap
        executor gives all rows at once, the loop executor one row at a time."""
        self.gates: dict[int, ParameterStore] = {}
        """slot -> E gates, allocated when a seed with style GATE is first germinated there."""

    def _store(
        self, initialiser: Initialiser, units: Sequence[Sequence[str]] | None = None
    ) -> ParameterStore:
        """Return a store of all members; `units`: parameters to gather together, if sharded."""
        if self.shards is None:
            return ParameterStore(initialiser, self.members, self.device)
        from esper.kasmina.stacked.sharded_store import ShardedStore

        return ShardedStore(initialiser, self.members, self.device, self.shards, units)

    def slot_index(self, slot: int | str) -> int:
        """Return the index of a slot given by id or index; raises if unknown."""
        ids = [spec.slot_id for spec in self.slots]
        if isinstance(slot, str):
            if slot not in ids:
                raise unknown_name("slot", slot, ids, "in this population")
            return ids.index(slot)
        resolve_target_slot(slot, ids, self.slots)
        return slot

    def find_sites(self, x: Tensor) -> None:
        """Find the segments that draw random numbers in training, from two or more samples."""
        self.sites = {}
        sources: list[str] = []
        for position, segment in enumerate(self.segments):
            found = find_draws(f"segment {position}", segment.module, x)
            x = found.out
            sources += found.uncontrolled
            if found.site is not None:
                self.sites[position] = found.site
        self.repeatable = not sources
        report_draws(f"host {type(self.host.template).__name__}", tuple(dict.fromkeys(sources)))
        self.fused_runs = _fuse_runs(
            self.segments, self.slots, self.device.type == "cpu", self.sites
        )

    @property
    def any_layout(self) -> bool:
        """Whether the host computes the same from channels-last images; tried when first asked."""
        trial, self.layout_trial = self.layout_trial, None
        if trial is not None:
            self._any_layout = trial(self)
        return self._any_layout

    @property
    def draws(self) -> bool:
        """Whether any part draws random numbers in training."""
        return bool(self.sites) or any(bank.site for bank in self.banks.values())

    @property
    def may_draw(self) -> bool:
        """The same, also if the host's random layers are not known yet."""
        return self.sites is None or self.draws

    def all_fit(self, slot_N: Ints, blueprint_N: Ints) -> bool:
        """Whether each blueprint is one that fits its slot."""
        slots, blueprints = self.fits_SK.shape
        known_N = (slot_N >= 0) & (slot_N < slots) & (blueprint_N >= 0) & (blueprint_N < blueprints)
        return bool(known_N.all() and self.fits_SK[slot_N, blueprint_N].all())

    def check_fit(self, slot: int, blueprint: int) -> None:
        """Raise unless the blueprint fits the slot, listing those that do."""
        names = [b.name for b in self.blueprints]
        spec = self.slots[self.slot_index(slot)]
        if not 0 <= blueprint < len(names):
            raise EsperError(f"blueprint index {blueprint}: valid are 0 to {len(names) - 1}")
        reason = self._misfits_SK[slot][blueprint]
        if reason is not None:
            fitting = [n for n, fits in zip(names, self.fits_SK[slot], strict=True) if fits]
            raise EsperError(
                f"blueprint {names[blueprint]!r} {reason}; "
                f"slot {spec.slot_id} takes {', '.join(fitting) or 'none of the enabled ones'}"
            )

    def _misfit(self, slot: int, recipe: Blueprint) -> str | None:
        """Return why a blueprint does not fit a slot, or None if it does."""
        return misfit(recipe, self.slots[slot], self._sources.get(slot), self.host.template)

    def _build_seed(self, slot: int, recipe: Blueprint) -> nn.Module:
        """Build a seed with the slot's width, or from the host."""
        return build_seed(recipe, self.slots[slot], self._sources.get(slot))

    def bank(self, slot: int, blueprint: int) -> ParameterStore:
        """Return the bank of a blueprint in a slot; the first use allocates and checks it."""
        key = (slot, blueprint)
        if key not in self.banks:
            recipe = self.blueprints[blueprint]
            initialiser = Initialiser(
                lambda: self._build_seed(slot, recipe), f"blueprint {recipe.name!r}"
            )
            sample = self.sample_activation(slot)
            writes = _try_seed(recipe, initialiser.template, sample)
            site = self._find_seed_site(slot, recipe, initialiser.template, sample)
            bank = self._store(initialiser)
            bank.writes_input = writes
            if site is not None and self.device.type != "cpu":
                # SYNC: operations on the device may draw differently than on the CPU; once per
                # blueprint and slot, and only if it draws at all.
                site = self._find_seed_site(slot, recipe, bank.template, sample.to(self.device))
            bank.site = site
            bank.release_template()
            self.banks[key] = bank
        return self.banks[key]

    def inherit(self, slot: int, blueprint: int, index_N: Tensor) -> None:
        """Copy what new seeds of members `index_N` inherit from their hosts as they are now."""
        if self.blueprints[blueprint].from_host:
            bank = self.bank(slot, blueprint)
            names: Mapping[str, str] = getattr(bank.template, "inherited", {})
            bank.inherit(self.host, names, index_N)

    def seed_template(self, slot: int, blueprint: int) -> nn.Module:
        """Return a seed with arbitrary weights, for counting; allocates no bank."""
        if (slot, blueprint) in self.banks:
            return self.banks[slot, blueprint].template
        with forked_rng(0):
            seed = self._build_seed(slot, self.blueprints[blueprint])
        return seed.to(self.device)

    def gate(self, slot: int) -> ParameterStore:
        """Return the gates of a slot."""
        if slot not in self.gates:
            width = self.slots[slot].channels
            initialiser = Initialiser(lambda: Gate(width, self.topology))
            self.gates[slot] = self._store(initialiser)
        return self.gates[slot]

    def sample_activation(self, slot: int) -> Tensor:
        """Return two small activations of the slot's shape, on the CPU."""
        return sample_activation(self.topology, self.slots[slot].channels)

    def _find_seed_site(
        self, slot: int, recipe: Blueprint, module: nn.Module, h: Tensor
    ) -> Site | None:
        """Return the random-number site of a seed, found by running it on a sample activation."""
        name = f"slot {self.slots[slot].slot_id} blueprint {recipe.name}"
        found = find_draws(name, module, h)
        report_draws(f"blueprint {recipe.name!r}", found.uncontrolled)
        if draws_in_evaluation(module, h):
            report_evaluation(f"blueprint {recipe.name!r}")
        return found.site

    def usable_fused_pairs(self) -> dict[int, Segment]:
        """Return the fused pairs without hooks on their segments; hooks may change at any time."""
        row_draws = self.sites or {}
        return {
            index: joint
            for index, joint in self.fused_pairs.items()
            if not any(has_hooks(segment.module) for segment in self.segments[index : index + 2])
            and index not in row_draws
            and index + 1 not in row_draws
        }

    def check_activation(self, slot: int, h: Tensor) -> None:
        """Raise unless an activation (batch first) has the axes and channels of its slot."""
        host = type(self.host.template).__name__
        check_activation(host, self.topology, self.slots[slot], h.shape)


def _units(segments: Sequence[Segment]) -> list[list[str]]:
    """Return the parameters of each segment, and those that the same segments share."""
    users: dict[str, list[int]] = {}
    for index, segment in enumerate(segments):
        for name in dict.fromkeys(segment.names.values()):
            users.setdefault(name, []).append(index)
    units: dict[tuple[int, ...], list[str]] = {}
    for name, where in users.items():
        units.setdefault(tuple(where), []).append(name)
    return list(units.values())


def _try_seed(recipe: Blueprint, module: nn.Module, h: Tensor) -> bool:
    """Raise unless a seed trains in its slot; return whether it modifies its input in place."""
    trains = not torch.is_inference_mode_enabled()
    module.eval()  # do not update running statistics
    with torch.set_grad_enabled(trains), torch.autocast("cpu", enabled=False), forked_rng(0):
        leaf = h.clone().requires_grad_(trains)
        given = leaf * 1.0  # in-place writes are allowed on activations, not on leaves
        what = f"blueprint {recipe.name!r} fails on an activation {tuple(h.shape)}"
        with user_code(what, "a seed takes any size with the slot's width", RuntimeError):
            out = module(given)
        _check_seed_output(recipe, out, h)
        advice = "operations in place may destroy what the gradient needs"
        with user_code(
            f"blueprint {recipe.name!r} fails in the backward pass", advice, RuntimeError
        ):
            if out.requires_grad:
                wanted = (leaf, *(p for p in module.parameters() if p.requires_grad))
                torch.autograd.grad(out.square().sum(), wanted, allow_unused=True)
    module.train()
    return not torch.equal(given.detach(), h)


def _check_seed_output(recipe: Blueprint, out: object, h: Tensor) -> None:
    """Raise unless a seed keeps shape and dtype."""
    if not isinstance(out, Tensor):
        raise ShapeError(
            f"blueprint {recipe.name!r} returns {type(out).__name__}: a seed maps one tensor to "
            f"one tensor"
        )
    if out.shape != h.shape:
        raise ShapeError(
            f"blueprint {recipe.name!r} turns {tuple(h.shape)} into {tuple(out.shape)}: "
            f"a seed must keep the shape of its slot"
        )
    if out.dtype != h.dtype:
        raise ShapeError(
            f"blueprint {recipe.name!r} turns {h.dtype} into {out.dtype}: a seed keeps the dtype"
        )


SAMPLEWISE_MODULES: Final = (
    nn.Identity, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool2d, nn.ReLU, nn.GELU,
)  # fmt: skip
"""Modules without parameters that act on each sample independently, and our subclasses."""


def _fuse_runs(
    segments: Sequence[Segment],
    slots: Sequence[InjectionSpec],
    on_cpu: bool,
    sites: Mapping[int, Site],
) -> tuple[FusedRun, ...]:
    """Fuse the segments between enabled slots, with sites as segments of their own."""
    cuts = {spec.position for spec in slots} | {len(segments) - 1} | set(sites)
    ends = sorted(cuts | {position - 1 for position in sites if position > 0})
    runs = []
    for first, last in zip([0, *(end + 1 for end in ends)], ends, strict=False):
        parts = list(segments[first : last + 1])
        samplewise: list[nn.Module] = []
        while on_cpu and len(parts) > 1 and _is_samplewise(parts[0].module):
            samplewise.append(parts.pop(0).module)
        whole = parts[0]
        if len(parts) > 1:
            names = {f"{i}.{n}": g for i, part in enumerate(parts) for n, g in part.names.items()}
            whole = Segment(nn.Sequential(*(part.module for part in parts)), names)
        runs.append(FusedRun(tuple(samplewise), whole, last, sites.get(last)))
    return tuple(runs)


def _fuse_pairs(segments: Sequence[Segment]) -> dict[int, Segment]:
    """Return the pairs with a fused implementation (`fused_with`)."""
    found = {}
    for index, (one, following) in enumerate(pairwise(segments)):
        join = getattr(one.module, "fused_with", None)
        whole = join(following.module) if join is not None and not following.names else None
        if whole is not None:
            found[index] = Segment(whole, one.names)
    return found


def _is_samplewise(module: nn.Module) -> bool:
    """Whether a module acts samplewise; false for user subclasses and for modules with hooks."""
    ours = type(module).__module__.startswith(("esper.kasmina.", "torch.nn."))
    return ours and isinstance(module, SAMPLEWISE_MODULES) and not has_hooks(module)


def _enabled_blueprints(blueprints: Sequence[str], topology: Topology) -> tuple[Blueprint, ...]:
    require_names("blueprints", blueprints)
    return tuple(BlueprintRegistry.get(name, topology) for name in blueprints)
